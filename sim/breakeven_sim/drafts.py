"""Draft methods: their cost, their conditional acceptance, the memory they take.

Acceptance is never an i.i.d. α: c[i] is the probability that position i+1 is accepted *given* that
positions 1..i were (it rises with position: the survivor effect). Each request shifts every logit
by one draw of N(0, τ).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from pathlib import Path

from .errors import SimInputError


@dataclass(frozen=True, slots=True)
class Draft:
    """One draft method at one size of target. Times in seconds.

    D = (d_fix + d_tok·B + d_kv·KV) × (k, or 1 when `parallel`); H = `h_s` per cycle; drafting a
    prompt costs `prefill_token_s` per token. `kv_factor` multiplies the KV bytes per token,
    `held_tokens` is the draft's own memory in tokens of the KV cache.
    """

    name: str
    d_fix_s: float
    d_tok_s: float
    d_kv_s: float
    h_s: float
    parallel: bool
    conditional: tuple[float, ...]
    kv_factor: float
    held_tokens: int
    tau: float
    prefill_token_s: float = 0.0
    # Cohorts: (share, conditional) rows; each request belongs to one, `conditional` to the rest.
    mix: tuple[tuple[float, tuple[float, ...]], ...] = ()

    def cost_s(self, batch: int, kv_tokens: int, k: int) -> float:
        """D + H of one cycle, seconds; 0 when nothing is drafted."""
        if k == 0 or batch == 0:
            return 0.0
        once = self.d_fix_s + self.d_tok_s * batch + self.d_kv_s * kv_tokens
        return once * (1 if self.parallel else k) + self.h_s

    def cohort(self, draw: float) -> tuple[float, ...]:
        """The conditional acceptance of the request with this uniform draw in 0..1."""
        for share, conditional in self.mix:
            if draw < share:
                return conditional
            draw -= share
        return self.conditional

    def survival(
        self, k: int, shift: float = 0.0, conditional: tuple[float, ...] | None = None
    ) -> tuple[float, ...]:
        """S_1..S_k: probability that at least i drafts are accepted, after a logit shift.

        Of `conditional` (a cohort's) where given. Raises SimInputError for a k that is not known.
        """
        if not 0 <= k <= len(self.conditional):
            raise SimInputError(
                f"k={k} for draft {self.name!r}: acceptance is known for "
                f"1..{len(self.conditional)} positions; choose k in that range"
            )
        chosen = self.conditional if conditional is None else conditional
        return tuple(accumulate((shifted(c, shift) for c in chosen[:k]), mul))

    def committed_per_cycle(self, k: int, shift: float = 0.0) -> float:
        """M = 1 + Σ S_i, tokens per cycle, before anything is cut by a stop; mean of the mix."""
        rest = 1.0 - sum(share for share, _ in self.mix)
        total = rest * sum(self.survival(k, shift))
        for share, conditional in self.mix:
            total += share * sum(self.survival(k, shift, conditional))
        return 1.0 + total


def shifted(probability: float, shift: float) -> float:
    """The probability whose logit is larger by `shift`; 0 and 1 stay what they are."""
    if shift == 0.0 or probability <= 0.0 or probability >= 1.0:
        return probability
    return 1.0 / (1.0 + math.exp(-(math.log(probability / (1.0 - probability)) + shift)))


_EAGLE8 = (0.70, 0.68, 0.70, 0.70, 0.70, 0.68, 0.66)
_NGRAM_CHAT_TAIL = (0.76, 0.82, 0.86, 0.87)
_NGRAM = Draft("ngram", 40e-6, 0, 0, 0.2e-3, True, (0.13, *_NGRAM_CHAT_TAIL), 1.0, 0, 0.0)

# (draft, size of the target) -> parameters; d_fix of every learned draft is assumed.
_DRAFTS: dict[tuple[str, str], Draft] = {
    ("eagle3", "8B"): Draft(
        "eagle3", 0.65e-3, 1e-6, 2.4e-9, 0.3e-3, False, _EAGLE8, 33 / 32, 5_000, 0.6
    ),
    ("eagle3", "70B"): Draft(
        "eagle3", 0.9e-3, 1e-6, 2.0e-9, 0.4e-3, False, (0.72, 0.70, 0.70), 33 / 32, 5_000, 0.6
    ),
    ("draft-1b", "8B"): Draft(
        "draft-1b", 1.6e-3, 3e-6, 9.8e-9, 0.5e-3, False,
        (0.80, 0.80, 0.81, 0.82, 0.82), 1.25, 19_000, 0.7, 3e-6,
    ),
    ("draft-1b", "70B"): Draft(
        "draft-1b", 1.9e-3, 3e-6, 9.8e-9, 0.6e-3, False, (0.80,) * 5, 1.10, 19_000, 0.7, 3e-6
    ),
}  # fmt: skip
NGRAM_VARIANTS: dict[str, Draft] = {
    # The static row: no spread between requests.
    "ngram": _NGRAM,
    # What the open-loop table was run with.
    "ngram-open": replace(_NGRAM, conditional=(0.24, *_NGRAM_CHAT_TAIL), tau=0.9),
    "ngram-code": replace(_NGRAM, conditional=(0.305, 0.90, 0.90, 0.95, 0.94)),
}
DRAFT_NAMES = ("none", "eagle3", "draft-1b", *NGRAM_VARIANTS)
DEFAULT_K = {"eagle3": 3, "draft-1b": 5, "ngram": 5, "ngram-open": 5, "ngram-code": 5}


def draft_named(name: str, size: str) -> Draft | None:
    """The draft `name` for a target of `size` ("8B", "70B"), or of a JSON file; None for "none".

    A custom file is named by a path that ends in .json and holds the fields of `Draft`, times in
    milliseconds as `d_fix_ms` etc.: see `read_draft`.
    """
    if name == "none":
        return None
    if name.endswith(".json"):
        return read_draft(Path(name))
    if name in NGRAM_VARIANTS:
        return NGRAM_VARIANTS[name]
    try:
        return _DRAFTS[(name, size)]
    except KeyError:
        raise SimInputError(
            f"unknown draft {name!r}: choose one of {', '.join(DRAFT_NAMES)}, or a FILE.json"
        ) from None


_FILE_DEFAULTS: dict[str, object] = {
    "d_fix_ms": None,
    "d_tok_ms": 0.0,
    "d_kv_ms": 0.0,
    "h_ms": 0.0,
    "parallel": False,
    "conditional": None,
    "kv_factor": 1.0,
    "held_tokens": 0,
    "tau": 0.0,
    "prefill_token_ms": 0.0,
    "mix": [],
}


def read_draft(path: Path) -> Draft:
    """A custom draft from JSON. Required: `d_fix_ms`, `conditional` (list of probabilities).

    Raises SimInputError that names the file, the key, the value and the mend.
    """
    try:
        given = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SimInputError(f"{path}: cannot read the draft file: {error.strerror}") from None
    except ValueError as error:
        raise SimInputError(f"{path}: not JSON ({error}); write one JSON object") from None
    if not isinstance(given, dict):
        raise SimInputError(f"{path}: write one JSON object with {', '.join(_FILE_DEFAULTS)}")
    for key in given:
        if key not in _FILE_DEFAULTS:
            raise SimInputError(f"{path}: unknown key {key!r}: use {', '.join(_FILE_DEFAULTS)}")
    value = {**_FILE_DEFAULTS, **given}
    conditional = _probabilities(path, "conditional", value["conditional"])

    def number(key: str, least: float = 0.0) -> float:
        got = value[key]
        if isinstance(got, bool) or not isinstance(got, int | float) or not least <= got < math.inf:
            raise SimInputError(f"{path}: {key}={got!r}: give a number ≥ {least:g}")
        return float(got)

    return Draft(
        name=path.stem,
        d_fix_s=number("d_fix_ms") / 1e3,
        d_tok_s=number("d_tok_ms") / 1e3,
        d_kv_s=number("d_kv_ms") / 1e3,
        h_s=number("h_ms") / 1e3,
        parallel=bool(value["parallel"]),
        conditional=conditional,
        kv_factor=number("kv_factor", 1.0),
        held_tokens=int(number("held_tokens")),
        tau=number("tau"),
        prefill_token_s=number("prefill_token_ms") / 1e3,
        mix=_mix(path, value["mix"], len(conditional)),
    )


def _probabilities(path: Path, key: str, given: object) -> tuple[float, ...]:
    if isinstance(given, list) and given:
        numbers = [c for c in given if isinstance(c, int | float) and 0 <= c <= 1]
        if len(numbers) == len(given):
            return tuple(float(c) for c in numbers)
    raise SimInputError(f"{path}: {key}={given!r}: give a list of numbers in 0..1")


def _mix(path: Path, given: object, positions: int) -> tuple[tuple[float, tuple[float, ...]], ...]:
    rows: list[tuple[float, tuple[float, ...]]] = []
    for row in given if isinstance(given, list) else [given]:
        fields: dict[str, object] = row if isinstance(row, dict) else {}
        share = fields.get("share")
        if not isinstance(share, int | float) or not 0 < share <= 1:
            raise SimInputError(
                f'{path}: mix={given!r}: give rows {{"share": 0.3, "conditional": […]}}'
            )
        conditional = _probabilities(path, "mix conditional", fields.get("conditional"))
        if len(conditional) != positions:
            raise SimInputError(f"{path}: mix: give {positions} positions, as in conditional")
        rows.append((float(share), conditional))
    if sum(share for share, _ in rows) > 1.0 + 1e-9:
        raise SimInputError(f"{path}: mix: the shares add up to more than 1: lower them")
    return tuple(rows)


def k_rows(value: str) -> tuple[tuple[int, int, int], ...]:
    """`1-8:7,9-32:3,33-:0` to (low, high, k) rows; raises SimInputError."""
    rows = []
    for part in value.split(","):
        try:
            span, k = part.split(":")
            low, high = span.split("-")
            rows.append((int(low), int(high) if high else 1 << 31, int(k)))
        except ValueError:
            raise SimInputError(
                f"k by batch {part!r}: write LOW-HIGH:K rows, e.g. 1-8:7,9-32:3,33-:0"
            ) from None
    return tuple(rows)
