"""The facts that a decision rests on: margins with intervals, floors, and what they say.

Here: one candidate's cells (cohort x offered rate) and what follows from them by comparison alone.
Not here: how a figure is measured or tested (judge), the table of decisions (decision).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MIN_GAIN = 0.02
"""Smallest margin worth a second model: below it operations eat the gain."""

SPECULATES = 1.15
"""M above this: drafts are accepted, so a loss is one of cost, not of acceptance."""

ALL = "all"
"""The cohort that holds every request."""


class Word(StrEnum):
    """Does the draft pay for one cohort at one load?"""

    PAYS = "pays"
    LOSES = "loses"
    EVEN = "even"  # the interval lies within ± MIN_GAIN: no difference that matters
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95 % interval."""

    value: float
    low: float
    high: float


def word_of(margin: Interval | None) -> Word:
    """pays or loses only when the whole interval says so."""
    if margin is None:
        return Word.INCONCLUSIVE
    if margin.low > 0:
        return Word.PAYS
    if margin.high < 0:
        return Word.LOSES
    if margin.low >= -MIN_GAIN and margin.high <= MIN_GAIN:
        return Word.EVEN
    return Word.INCONCLUSIVE


@dataclass(frozen=True, slots=True)
class Floor:
    """One promise at one load: kept, broken, or not shown either way.

    Attributes:
        name: goodput, ttft, gap, errors, quality, ….
        held: True or False where the data show it, None where they cannot.
        detail: the figures, in words.
    """

    name: str
    held: bool | None
    detail: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One candidate, one cohort, one offered rate, against the baseline at the same rate.

    Attributes:
        margin: share of decode time per token saved; None where it cannot be computed.
        word: what the margin says (after Holm's correction for single cohorts).
        floors: promises, joined as an intersection: one broken is broken.
        cost_ratio: dollars per good response over the baseline's; None where undefined.
        m, inflation: committed tokens per cycle, and C/T.
        share: the cohort's share of requests, 0..1.
        blocks, blocks_needed: blocks that were used; how many could carry the claim.
        unstable: a queue built up: only completion rates are compared.
    """

    cohort: str
    load: str
    rate: float
    margin: Interval | None
    word: Word
    floors: tuple[Floor, ...] = ()
    cost_ratio: Interval | None = None
    m: float | None = None
    inflation: float | None = None
    share: float = 1.0
    blocks: int = 0
    blocks_needed: int | None = None
    unstable: bool = False

    @property
    def broken(self) -> tuple[Floor, ...]:
        """Floors that the data show to be broken."""
        return tuple(floor for floor in self.floors if floor.held is False)

    @property
    def open_floors(self) -> tuple[Floor, ...]:
        """Floors that the data cannot show to be kept."""
        return tuple(floor for floor in self.floors if floor.held is None)

    @property
    def doubtful(self) -> bool:
        """Not shown either way, and the estimate is a loss."""
        unknown = self.word is Word.INCONCLUSIVE and self.margin is not None
        return unknown and self.margin is not None and self.margin.value < 0

    @property
    def clears(self) -> bool:
        """Pays by an amount worth having, and every floor is shown to be kept."""
        worth = self.margin is None or self.margin.value >= MIN_GAIN
        return self.word is Word.PAYS and worth and all(floor.held for floor in self.floors)


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is known of one candidate when the table is walked.

    Attributes:
        cells: every cohort (and ALL) at every rate, rates ascending.
        invalid: validity gates that failed, with their reasons.
        unsupported: features that the contract needs and the candidate failed or never showed.
        unverified: sampler semantics that are not shown (a lossy or unstated rejection method).
        quality: quality checks that failed, in words.
        ttft_share: share of the baseline's response time that is TTFT, at the lowest rate.
        median_output: median output tokens there.
        bottleneck: what the baseline's own figures show, in words.
    """

    arm: str
    cells: tuple[Cell, ...]
    invalid: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    quality: tuple[str, ...] = ()
    ttft_share: float | None = None
    median_output: float | None = None
    bottleneck: str | None = None

    def of(self, cohort: str) -> tuple[Cell, ...]:
        """The cells of one cohort, rates ascending."""
        return tuple(sorted((c for c in self.cells if c.cohort == cohort), key=lambda c: c.rate))

    @property
    def whole(self) -> tuple[Cell, ...]:
        """The cells of all requests together."""
        return self.of(ALL)

    @property
    def proven(self) -> tuple[Cell, ...]:
        """Rates, from the lowest up without a gap, at which the whole traffic clears."""
        out: list[Cell] = []
        for cell in self.whole:
            if not cell.clears:
                break
            out.append(cell)
        return tuple(out)

    @property
    def losing_cohorts(self) -> tuple[str, ...]:
        """Cohorts that lose, or break a floor, at a rate where the whole would be kept.

        One that is not shown to gain and whose estimate is negative counts with them: the mean of
        the others is no proof for it, and the baseline is safe.
        """
        rates = {cell.rate for cell in self.proven} or {cell.rate for cell in self.whole}
        names = {
            cell.cohort
            for cell in self.cells
            if cell.cohort != ALL
            and cell.rate in rates
            and (cell.word is Word.LOSES or cell.broken or cell.doubtful)
        }
        return tuple(sorted(names))

    @property
    def paying_cohorts(self) -> tuple[str, ...]:
        """Cohorts that clear at the lowest rate and lose at no rate.

        None where the whole traffic breaks a floor there, or is not shown to keep it: those
        promises are made to everybody.
        """
        if not self.whole or not all(floor.held for floor in self.whole[0].floors):
            return ()
        out = []
        for name in sorted({cell.cohort for cell in self.cells if cell.cohort != ALL}):
            cells = self.of(name)
            loses = any(cell.word is Word.LOSES or cell.broken for cell in cells)
            if cells and cells[0].clears and not loses:
                out.append(name)
        return tuple(out)
