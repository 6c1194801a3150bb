"""Defaults of both commands: light on purpose, so that `--help` and bad flags answer at once."""

from __future__ import annotations

# vLLM's own defaults for a large GPU, and what the published tables were run with.
MAX_NUM_SEQS = 256
MAX_NUM_BATCHED_TOKENS = 8192
# The name a client asks for; says what answers.
DEFAULT_MODEL = "simulated-model"
# The context of the Llama 3.1 models that the presets imitate.
DEFAULT_MAX_MODEL_LEN = 131_072

# The static table's batch sizes and cached tokens per sequence.
BATCHES = (1, 4, 8, 16, 32, 64, 128, 256)
CONTEXT_TOKENS = 600
# One H100, an assumed price.
USD_PER_HOUR = 3.0

# ShareGPT-like lengths: log-normal medians, sigmas and clips.
PROMPT_MEDIAN, PROMPT_SIGMA, PROMPT_CLIP = 182.0, 1.15, (8, 4000)
OUTPUT_MEDIAN, OUTPUT_SIGMA, OUTPUT_CLIP = 480.0, 0.9, (8, 2048)
