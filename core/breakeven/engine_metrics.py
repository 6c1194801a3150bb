"""An engine's counters, and what two pages of them say: M, cycle time, acceptance.

Here: page -> EngineCounters by a schema, and the difference of two -> EngineDelta. Not here:
names (engine_schemas), fetching. Absent is None with a reason, never 0.

Identities, true on the recorded counters of tests/data/vllm, with G generation tokens, F first
tokens (TTFT samples), S steps (inter-token samples), A accepted draft tokens, all as differences:
    M = (G - F) / S             committed tokens per cycle; 1.000 without speculation
    cycle = sum(step_gap) / S   D + V + H, the elapsed critical path, seconds
    cut = F + S + A - G         accepted tokens cut off after a stop
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .engine_histogram import EngineHistogram, summed_histogram
from .engine_schemas import Schema, StepSamples, schema_of
from .errors import SchemaError
from .exposition import Page, Sample, label_values, parse_page

CUT_SHARE_MAX = 0.5
"""Above this share of accepted tokens "cut", samples are tokens, not steps (9 % recorded)."""


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """One page in our names. A name that the page lacks is not in the mapping.

    Attributes:
        schema: name of the schema that was recognised; engine: the engine's name.
        counters: cumulative counts, summed over engines (data parallel has several).
        gauges: requests summed; shares (kv_cache_usage) are the highest of the engines.
        histograms: summed over engines.
        accepted_per_position: accepted draft tokens at position 0, 1, …; empty if not exposed.
        engines, models: distinct label values.
        started_at: process start, Unix seconds, where the page tells it.
        facts: what cache_config_info says of KV capacity: num_gpu_blocks, block_size, ….
    """

    schema: str
    engine: str
    step_samples: StepSamples
    verify_steps: str | None
    counters: Mapping[str, float]
    gauges: Mapping[str, float]
    histograms: Mapping[str, EngineHistogram]
    accepted_per_position: tuple[float, ...] = ()
    engines: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    started_at: float | None = None
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def k(self) -> int | None:
        """Depth of speculation = number of position labels; None where not exposed."""
        return len(self.accepted_per_position) or None

    @property
    def kv_capacity_tokens(self) -> int | None:
        """KV cache capacity of one engine in tokens; None where not exposed."""
        direct = self.facts.get("kv_cache_size_tokens", "")
        if direct.isdecimal():  # `isdigit` takes superscripts, which int() does not
            return int(direct)
        blocks, size = self.facts.get("num_gpu_blocks", ""), self.facts.get("block_size", "")
        return int(blocks) * int(size) if blocks.isdecimal() and size.isdecimal() else None


def read_counters(data: Page | bytes | str) -> EngineCounters:
    """Read one /metrics page (text, or a recorded HTTP response) by the schema that fits it.

    Raises:
        ProtocolError: no exposition text. SchemaError: no engine's page, or a NaN counter.
    """
    page = data if isinstance(data, Page) else parse_page(data)
    schema = schema_of(page)
    by_name: dict[str, list[Sample]] = {}
    for sample in page.samples:
        by_name.setdefault(sample.name, []).append(sample)
    engine_samples = [s for s in page.samples if s.name.startswith(("vllm:", "sglang:", "trtllm_"))]
    starts = [s.value for s in by_name.get("process_start_time_seconds", ())]
    return EngineCounters(
        schema=schema.name,
        engine=schema.engine,
        step_samples=schema.step_samples,
        verify_steps=schema.verify_steps,
        counters=_totals(schema.counters, by_name, sum),
        gauges=_totals(schema.gauges, by_name, sum) | _totals(schema.ratios, by_name, max),
        histograms=_histograms(schema, by_name),
        accepted_per_position=_positions(schema, by_name),
        engines=label_values(engine_samples, "engine"),
        models=label_values(engine_samples, "model_name"),
        started_at=max(starts) if starts else None,
        facts=_facts(by_name),
    )


def _totals(
    table: Mapping[str, tuple[str, ...]], by_name: Mapping[str, list[Sample]], join: Any
) -> dict[str, float]:
    found: dict[str, float] = {}
    for ours, alternatives in table.items():
        name = next((name for name in alternatives if name in by_name), None)
        if name is None:
            continue
        value = float(join(sample.value for sample in by_name[name]))
        if value != value:
            raise SchemaError(f"{name} is NaN: the engine's page cannot be used")
        found[ours] = value
    return found


MAX_POSITION = 999
"""No draft is deeper; a list as long as any number an engine writes would have no bound."""


def _positions(schema: Schema, by_name: Mapping[str, list[Sample]]) -> tuple[float, ...]:
    samples = by_name.get(schema.per_position or "", [])
    totals: dict[int, float] = {}
    for sample in samples:
        position = sample.labels.get("position", "")
        if not position.isdecimal() or int(position[:9]) > MAX_POSITION:
            raise SchemaError(f"{sample.name}: the label position is no number below 1000")
        totals[int(position)] = totals.get(int(position), 0.0) + sample.value
    return tuple(totals.get(i, 0.0) for i in range(max(totals) + 1)) if totals else ()


def _histograms(schema: Schema, by_name: Mapping[str, list[Sample]]) -> dict[str, EngineHistogram]:
    found: dict[str, EngineHistogram] = {}
    for ours, alternatives in schema.histograms.items():
        name = next((name for name in alternatives if f"{name}_count" in by_name), None)
        if name is None or f"{name}_sum" not in by_name:
            continue
        found[ours] = summed_histogram(name, by_name)
    return found


def _facts(by_name: Mapping[str, list[Sample]]) -> dict[str, str]:
    wanted = ("num_gpu_blocks", "block_size", "kv_cache_size_tokens", "cache_dtype",
              "enable_prefix_caching", "gpu_memory_utilization")  # fmt: skip
    infos = by_name.get("vllm:cache_config_info", [])
    return {key: infos[0].labels[key] for key in wanted if infos and key in infos[0].labels}


# --- the difference of two pages -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EngineDelta:
    """What happened between two pages of one engine. None means not known; `reasons` says why.

    Attributes:
        schema: the schema both pages are written in.
        m: committed tokens per cycle, (g - f) / s.
        cycle_s: seconds per cycle: D + V + H of a speculating arm, T where m is 1.
        g, f, s: generation tokens, first tokens, steps (engine outputs after the first).
        drafts, draft_tokens, accepted: speculation counters; a step may go undrafted.
        accepted_per_position: accepted draft tokens by position 0, 1, ….
        k: depth of speculation (number of positions).
        step_s: sum of the step gaps, seconds.
        s_per_token: step_s / (g - f), decode seconds per committed token.
        acceptance: accepted / draft_tokens; never alone, and never to be used as alpha.
        per_drafted_step: 1 + accepted / drafts; overstates M when steps go undrafted.
        cut_tokens: accepted tokens that a stop cut off, f + s + accepted - g.
        survival, conditional: S_i = accepted at i / drafts; c_i = S_i / S_(i-1).
        counters: difference of every counter that both pages allow.
        histograms: difference of every histogram.
        gauges: the later page's gauges.
        resets: counters that went down: the engine restarted, or the pages are swapped.
    """

    schema: str
    m: float | None = None
    cycle_s: float | None = None
    g: float | None = None
    f: float | None = None
    s: float | None = None
    drafts: float | None = None
    draft_tokens: float | None = None
    accepted: float | None = None
    accepted_per_position: tuple[float, ...] | None = None
    k: int | None = None
    step_s: float | None = None
    s_per_token: float | None = None
    acceptance: float | None = None
    per_drafted_step: float | None = None
    cut_tokens: float | None = None
    survival: tuple[float, ...] | None = None
    conditional: tuple[float | None, ...] | None = None
    prefix_hit_rate: float | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, EngineHistogram] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)
    resets: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)


def delta(before: EngineCounters, after: EngineCounters) -> EngineDelta:
    """Account for what an engine did between two pages.

    A counter that only the later page has counts from 0: client libraries create a labelled
    series at its first increment.

    Raises:
        SchemaError: the pages are written in different schemas, or name different models.
    """
    if before.schema != after.schema:
        raise SchemaError(f"the pages differ in schema: {before.schema}, then {after.schema}")
    if before.models and after.models and before.models != after.models:
        raise SchemaError("the two pages are of different models: take both from one engine")
    resets = _resets(before, after)
    if resets:
        why = "counters were reset in between: the engine restarted, or the pages are swapped"
        names = ("m", "cycle_s", "g", "f", "s", "drafts", "draft_tokens", "accepted")
        return EngineDelta(after.schema, resets=resets, reasons=dict.fromkeys(names, why))
    counters = {n: v - before.counters.get(n, 0.0) for n, v in after.counters.items()}
    histograms = {
        name: late.minus(early) if (early := before.histograms.get(name)) else late
        for name, late in after.histograms.items()
    }
    return _accounted(before, after, counters, histograms)


def _resets(before: EngineCounters, after: EngineCounters) -> tuple[str, ...]:
    down = [n for n, v in before.counters.items() if after.counters.get(n, -1.0) < v]
    down += [
        name
        for name, early in before.histograms.items()
        if name not in after.histograms or after.histograms[name].count < early.count
    ]
    starts = (before.started_at, after.started_at)
    if None not in starts and starts[0] != starts[1]:
        down.append("process_start_time_seconds")
    return tuple(sorted(down))


def _accounted(
    before: EngineCounters,
    after: EngineCounters,
    counters: Mapping[str, float],
    histograms: Mapping[str, EngineHistogram],
) -> EngineDelta:
    reasons: dict[str, str] = {}
    g = counters.get("generation_tokens")
    f = histograms["ttft"].count if "ttft" in histograms else None
    accepted = counters.get("spec_accepted_tokens")
    s, step_s = _steps(after, counters, histograms, reasons)
    positions = _per_position(before, after)
    for name, value in (("g", g), ("f", f), ("drafts", counters.get("spec_drafts")),
                        ("draft_tokens", counters.get("spec_draft_tokens")),
                        ("accepted", accepted), ("accepted_per_position", positions)):  # fmt: skip
        if value is None:
            reasons.setdefault(name, _not_there(name))
    decoded = g - f if g is not None and f is not None else None
    cut = f + s + accepted - g if None not in (f, s, accepted, g) else None  # type: ignore[operator]
    if cut is not None and accepted and cut > CUT_SHARE_MAX * accepted:
        reasons["s"] = "the step histogram counts tokens, not steps: another version's meaning"
        s = cut = None
    drafts = counters.get("spec_drafts")
    m = _ratio(decoded, s, "m", reasons)
    return EngineDelta(
        schema=after.schema,
        m=m,
        cycle_s=_ratio(step_s, s, "cycle_s", reasons),
        g=g,
        f=f,
        s=s,
        drafts=drafts,
        draft_tokens=counters.get("spec_draft_tokens"),
        accepted=accepted,
        accepted_per_position=positions,
        k=after.k,
        step_s=step_s,
        s_per_token=_ratio(step_s, decoded, "s_per_token", reasons),
        acceptance=_ratio(accepted, counters.get("spec_draft_tokens"), "acceptance", reasons),
        per_drafted_step=1 + accepted / drafts if accepted is not None and drafts else None,
        cut_tokens=cut,
        survival=tuple(n / drafts for n in positions) if positions and drafts else None,
        conditional=_conditional(positions, drafts),
        prefix_hit_rate=_ratio(
            counters.get("prefix_cache_hits"),
            counters.get("prefix_cache_queries"),
            "prefix_hit_rate",
            reasons,
        ),
        counters=counters,
        histograms=histograms,
        gauges=after.gauges,
        reasons=reasons,
    )


def _not_there(name: str) -> str:
    if name in ("g", "f"):
        return "not exposed by this engine"
    return "not exposed: the engine runs without speculation, or does not count it"


def _steps(
    after: EngineCounters,
    counters: Mapping[str, float],
    histograms: Mapping[str, EngineHistogram],
    reasons: dict[str, str],
) -> tuple[float | None, float | None]:
    """(steps, their total seconds), by what a sample of this engine's histogram stands for."""
    gaps = histograms.get("step_gap")
    if gaps is None:
        reasons["s"] = "no inter-token histogram on this page"
        return None, None
    if after.step_samples == "per_step":
        return gaps.count, gaps.total
    steps = counters.get(after.verify_steps) if after.verify_steps else None
    if not steps:
        reasons["s"] = "this engine's inter-token samples are not steps, and it counts no steps"
        return None, gaps.total
    return steps, gaps.total


def _per_position(before: EngineCounters, after: EngineCounters) -> tuple[float, ...] | None:
    now, then = after.accepted_per_position, before.accepted_per_position
    if not now:
        return None
    return tuple(n - (then[i] if i < len(then) else 0.0) for i, n in enumerate(now))


def _conditional(
    positions: tuple[float, ...] | None, drafts: float | None
) -> tuple[float | None, ...] | None:
    """c_i = accepted at i / accepted at i-1 (drafts for i = 0); None where none came so far."""
    if not positions or drafts is None:
        return None
    reached = (drafts, *positions[:-1])
    return tuple(n / r if r > 0 else None for n, r in zip(positions, reached, strict=True))


def _ratio(
    above: float | None, below: float | None, name: str, reasons: dict[str, str]
) -> float | None:
    if above is None or below is None:
        speculation = name == "acceptance" and _not_there(name)
        why = speculation or reasons.get("s") or "a series that it needs is not exposed"
        reasons.setdefault(name, why)
        return None
    if below <= 0:
        reasons.setdefault(name, "nothing happened between the two pages")
        return None
    return above / below
