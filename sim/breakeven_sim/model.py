"""Step-time model of a GPU engine: roofline with a soft knee, KV reads, overhead. No scheduling.

Parameters and sources: SpecDecode-Bench (arXiv 2601.11580 and its public data, vLLM on H100) and
Vidur's H100 operator profiles. "derived" and "assumed" values are marked; nothing here was measured
on a GPU by this project.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import SimInputError


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine on its hardware: the target model's step time and its KV cache.

    Times in seconds. `t_mem_s` reads the weights once per step, `t_flop_s` computes one token,
    `knee` the exponent p of the soft maximum of both, `c_kv_s` the read of one cached token,
    `overhead_s` the scheduler and sampler per step; `kv_tokens` tokens fit in the KV cache.
    """

    name: str
    t_mem_s: float
    t_flop_s: float
    knee: float
    c_kv_s: float
    overhead_s: float
    kv_tokens: int
    size: str

    def step_s(self, tokens: int, kv_tokens: int) -> float:
        """Seconds of one target step over `tokens` positions that read `kv_tokens` cached tokens.

        T = (t_mem^p + (n·t_flop)^p)^(1/p) + c_kv·KV + overhead (engine-model.md; p → ∞ is the
        hard roofline, p = 1 the published linear fit).
        """
        p = self.knee
        compute = tokens * self.t_flop_s
        roofline = float((self.t_mem_s**p + compute**p) ** (1.0 / p))
        return roofline + self.c_kv_s * kv_tokens + self.overhead_s


ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("8b-h100", 5.5e-3, 20.5e-6, 1.5, 39e-9, 1.2e-3, 410_000, "8B"),
        # c_kv derived, overhead assumed.
        Engine("70b-tp4-h100", 14.3e-3, 54e-6, 1.6, 26e-9, 1.5e-3, 440_000, "70B"),
        # The published linear fit of the 8B engine itself, to compare the soft knee with.
        Engine("8b-h100-linear", 5.886e-3, 21.01e-6, 1.0, 39.26e-9, 1.207e-3, 410_000, "8B"),
    )
}


def engine_named(name: str) -> Engine:
    """The preset, or SimInputError that lists the presets."""
    try:
        return ENGINES[name]
    except KeyError:
        raise SimInputError(
            f"unknown preset {name!r}: choose one of {', '.join(ENGINES)}"
        ) from None
