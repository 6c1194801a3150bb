"""Server flags that change responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SpecMetrics = Literal["none", "summary", "detailed"]


@dataclass(frozen=True, slots=True)
class Options:
    """Server flags that change responses, named as vLLM's own flags."""

    force_include_usage: bool = False
    per_request_spec_decode_metrics: SpecMetrics = "none"
    per_request_metrics: bool = False
    request_id_headers: bool = False
    # --enable-auto-tool-choice: calls the first (or the named) tool with valid arguments.
    tool_calls: bool = False
