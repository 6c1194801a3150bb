"""The certificate: what a decision proved, in a form that the proxy can hold traffic to.

Here: its fields, JSON, checksum and validation. Not here: how the figures came about (judge), nor
what a broken limit leads to (proven, routing). `sha256` is a checksum against damage and
hand edits, not authenticity: whoever can write the file can also write the sum.

    {"breakeven_certificate": 1, "created": "2026-11-30T15:00:00Z", "expires": "…",
     "arm": "draft-k4", "slo": {…}, "epsilon_s": 0.002, "load_classes": {"low_max": 4, …},
     "range": {"min": 0.5, "max": 11.2}, "baseline": {"chat-en": {"low": {"s_per_token": …}}},
     "denied_cohorts": [], "rollback_headroom_rps": 9.5, "fingerprint": {…},
     "labels": {…}, "evidence": "evidence", "sha256": "…"}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NoReturn

from .errors import CertificateError, InputError
from .load import LOAD_CLASSES, LoadClass, LoadClasses
from .provenance import Evidence, Labels, read_labels
from .slo import SLO

VERSION = 1
DEFAULT_VALID_DAYS = 30
"""Traffic, versions and prices drift: a month-old proof is to be renewed."""

EPSILON_TOLERANCE = 1e-9
"""Two epsilons that differ by less than a nanosecond are the same setting."""


@dataclass(frozen=True, slots=True)
class FrozenBaseline:
    """What the baseline did for one cohort at one load; None is not measured.

    Attributes:
        s_per_token: T, decode seconds per token.
        gap_p99_s: p99 of burst gaps. ttft_p95_s: p95 of TTFT.
        cost_per_good_usd: dollars per SLO-compliant response.
    """

    s_per_token: float
    gap_p99_s: float | None = None
    ttft_p95_s: float | None = None
    cost_per_good_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """How the candidate that was proven can be recognised; None is unknown, and matches all."""

    engine_version: str | None = None
    system_fingerprint: str | None = None
    model: str | None = None
    k: int | None = None


@dataclass(frozen=True, slots=True)
class Certificate:
    """See the module's docstring. Rates are req/s per replica, except the headroom.

    Attributes:
        arm: the candidate that was proven.
        min_rps, max_rps: proven load range, req/s per replica of the candidate.
        baseline: (cohort, load class) -> frozen figures.
        denied_cohorts: cohorts that stay on the baseline.
        rollback_headroom_rps: req/s in total that the baseline can take over within the SLO.
        policy: thresholds of the load-aware policy, as `decision.json` prints them.
    """

    created: datetime
    expires: datetime
    arm: str
    slo: SLO
    epsilon_s: float
    load_classes: LoadClasses
    min_rps: float
    max_rps: float
    baseline: Mapping[tuple[str, LoadClass], FrozenBaseline]
    rollback_headroom_rps: float | None
    fingerprint: Fingerprint
    labels: Labels
    denied_cohorts: tuple[str, ...] = ()
    policy: Mapping[str, Any] = field(default_factory=dict)

    @property
    def evidence(self) -> Evidence:
        """evidence or method_check, by the labels."""
        return self.labels.evidence


# --- writing ----------------------------------------------------------------------------------


def certificate_json(certificate: Certificate) -> str:
    """The certificate as indented JSON text, checksum included."""
    record = _record(certificate)
    return json.dumps(record | {"sha256": checksum(record)}, indent=2) + "\n"


def checksum(record: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of the record without its own `sha256`, as JSON with sorted keys, no spaces."""
    body = {key: value for key, value in record.items() if key != "sha256"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()


def _record(c: Certificate) -> dict[str, Any]:
    baseline: dict[str, dict[str, Any]] = {}
    for (cohort, load), frozen in sorted(c.baseline.items()):
        baseline.setdefault(cohort, {})[load] = {
            "s_per_token": frozen.s_per_token,
            "gap_p99_s": frozen.gap_p99_s,
            "ttft_p95_s": frozen.ttft_p95_s,
            "cost_per_good_usd": frozen.cost_per_good_usd,
        }
    return {
        "breakeven_certificate": VERSION,
        "created": _stamp(c.created),
        "expires": _stamp(c.expires),
        "arm": c.arm,
        "slo": {**c.slo.bounds(), "objective": c.slo.objective},
        "epsilon_s": c.epsilon_s,
        "load_classes": {
            "low_max": c.load_classes.low_max,
            "normal_max": c.load_classes.normal_max,
        },
        "range": {"min": c.min_rps, "max": c.max_rps},
        "baseline": baseline,
        "denied_cohorts": list(c.denied_cohorts),
        "rollback_headroom_rps": c.rollback_headroom_rps,
        "policy": dict(c.policy),
        "fingerprint": {
            "engine_version": c.fingerprint.engine_version,
            "system_fingerprint": c.fingerprint.system_fingerprint,
            "model": c.fingerprint.model,
            "k": c.fingerprint.k,
        },
        "labels": c.labels.as_dict(),
        "evidence": c.evidence.value,
    }


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


# --- reading ----------------------------------------------------------------------------------


def read_certificate(text: str | bytes, *, file: str) -> Certificate:
    """Read and check a certificate.

    Raises:
        CertificateError: damaged or hand-edited, another version, an unknown or missing field, a
            figure that cannot be. The message names file, field, value and mend.
    """
    reader = _Reader(_parsed(text, file), file)
    record = reader.record
    version = record.get("breakeven_certificate")
    if version != VERSION or isinstance(version, bool):
        mend = f"this release reads version {VERSION}"
        reader.refuse("no certificate of a known version", "breakeven_certificate", version, mend)
    if record.get("sha256") != checksum(record):
        mend = "take the file that loadgen decide wrote"
        reader.refuse("damaged or edited: the checksum does not fit", "sha256", None, mend)
    reader.check_fields()
    created, expires = reader.moment("created"), reader.moment("expires")
    if expires <= created:
        reader.refuse("expires before it was created", "expires", record["expires"], "decide anew")
    low, high = reader.range()
    return Certificate(
        created=created,
        expires=expires,
        arm=reader.text(record["arm"], "arm"),
        slo=reader.slo(),
        epsilon_s=reader.number(record["epsilon_s"], "epsilon_s"),
        load_classes=reader.load_classes(),
        min_rps=low,
        max_rps=high,
        baseline=reader.baseline(),
        rollback_headroom_rps=reader.optional(record["rollback_headroom_rps"],
                                              "rollback_headroom_rps"),
        fingerprint=reader.fingerprint(),
        labels=reader.labels(),
        denied_cohorts=reader.cohorts(),
        policy=reader.mapping(record.get("policy", {}), "policy"),
    )  # fmt: skip


def check_usable(
    certificate: Certificate,
    *,
    file: str,
    now: datetime,
    epsilon_s: float,
    load_classes: LoadClasses,
) -> None:
    """Refuse a certificate that was proven under other settings than those in force.

    Raises:
        CertificateError: expired, another epsilon, other load classes; each with its mend.
    """
    if now >= certificate.expires:
        raise CertificateError(
            "expired", file=file, key="expires", value=_stamp(certificate.expires),
            mend="run the grid again and decide anew",
        )  # fmt: skip
    if abs(certificate.epsilon_s - epsilon_s) > EPSILON_TOLERANCE:
        raise CertificateError(
            "proven with another burst threshold than the one in force", file=file,
            key="epsilon_s", value=certificate.epsilon_s,
            mend=f"set epsilon_s: {certificate.epsilon_s:g} (now {epsilon_s:g})",
        )  # fmt: skip
    if certificate.load_classes != load_classes:
        theirs, ours = certificate.load_classes, load_classes
        raise CertificateError(
            "proven with other load classes than those in force", file=file, key="load_classes",
            value=f"low_max {theirs.low_max:g}, normal_max {theirs.normal_max:g}",
            mend=f"use the same bounds (now {ours.low_max:g}, {ours.normal_max:g})",
        )  # fmt: skip


def _parsed(text: str | bytes, file: str) -> dict[str, Any]:
    def constant(name: str) -> NoReturn:
        raise CertificateError("a number must be finite", file=file, value=name, mend="decide anew")

    try:
        record = json.loads(text, parse_constant=constant)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise CertificateError(
            "no JSON", file=file, mend="take the file that loadgen decide wrote"
        ) from None
    if not isinstance(record, dict):
        raise CertificateError("no JSON object", file=file, mend="take loadgen decide's file")
    return record


_FIELDS = {
    "breakeven_certificate", "created", "expires", "arm", "slo", "epsilon_s", "load_classes",
    "range", "baseline", "denied_cohorts", "rollback_headroom_rps", "policy", "fingerprint",
    "labels", "evidence", "sha256",
}  # fmt: skip
_OPTIONAL = {"policy"}


class _Reader:
    """Checked access to one record; every refusal names the field."""

    def __init__(self, record: dict[str, Any], file: str) -> None:
        self.record = record
        self.file = file

    def refuse(self, what: str, key: str, value: object, mend: str) -> NoReturn:
        raise CertificateError(what, file=self.file, key=key, value=value, mend=mend)

    def check_fields(self) -> None:
        for key in sorted(set(self.record) - _FIELDS):
            self.refuse("unknown field", key, None, "take a certificate of this release")
        for key in sorted(_FIELDS - _OPTIONAL - set(self.record)):
            self.refuse("field is missing", key, None, "decide anew with this release")

    def mapping(self, value: Any, key: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.refuse("must be a mapping", key, value, "decide anew")
        return value

    def text(self, value: Any, key: str) -> str:
        if not isinstance(value, str) or not value or len(value) > 200:
            self.refuse("must be a short text", key, None, "decide anew")
        return value

    def number(self, value: Any, key: str, *, zero: bool = False) -> float:
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            least = "at least 0" if zero else "above 0"
            self.refuse(f"must be a number {least}", key, value, "decide anew")
        return float(value)

    def optional(self, value: Any, key: str) -> float | None:
        return None if value is None else self.number(value, key, zero=True)

    def moment(self, key: str) -> datetime:
        value = self.record[key]
        try:
            moment = datetime.fromisoformat(value)
        except (TypeError, ValueError):
            self.refuse("must be a time", key, value, "e.g. 2026-12-31T00:00:00Z")
        if moment.tzinfo is None:
            self.refuse("must name its time zone", key, value, "e.g. 2026-12-31T00:00:00Z")
        return moment

    def slo(self) -> SLO:
        bounds = self.mapping(self.record["slo"], "slo")
        try:
            return SLO(**{key: self.number(value, f"slo.{key}") for key, value in bounds.items()})
        except TypeError:
            self.refuse("unknown bound", "slo", sorted(bounds), "ttft_s, tpot_s, gap_p99_s, e2e_s")
        except InputError as error:
            self.refuse(error.what, f"slo.{error.key}", error.value, error.mend or "decide anew")

    def load_classes(self) -> LoadClasses:
        bounds = self.mapping(self.record["load_classes"], "load_classes")
        try:
            return LoadClasses(
                **{k: self.number(v, f"load_classes.{k}") for k, v in bounds.items()}
            )
        except TypeError:
            self.refuse("must have low_max and normal_max", "load_classes", sorted(bounds), "so")
        except InputError as error:
            self.refuse(error.what, f"load_classes.{error.key}", error.value, "decide anew")

    def range(self) -> tuple[float, float]:
        bounds = self.mapping(self.record["range"], "range")
        if set(bounds) != {"min", "max"}:
            self.refuse("must have min and max", "range", sorted(bounds), "decide anew")
        low = self.number(bounds["min"], "range.min", zero=True)
        high = self.number(bounds["max"], "range.max")
        if low > high:
            self.refuse("min lies above max", "range", low, "decide anew")
        return low, high

    def baseline(self) -> dict[tuple[str, LoadClass], FrozenBaseline]:
        out: dict[tuple[str, LoadClass], FrozenBaseline] = {}
        for cohort, loads in self.mapping(self.record["baseline"], "baseline").items():
            for load, frozen in self.mapping(loads, f"baseline.{cohort}").items():
                key = f"baseline.{cohort}.{load}"
                known = next((name for name in LOAD_CLASSES if name == load), None)
                if known is None:
                    self.refuse("unknown load class", key, load, "low, normal or peak")
                figures = self.mapping(frozen, key)
                if set(figures) - {"s_per_token", "gap_p99_s", "ttft_p95_s", "cost_per_good_usd"}:
                    self.refuse("unknown figure", key, sorted(figures), "decide anew")
                out[cohort, known] = FrozenBaseline(
                    self.number(figures.get("s_per_token"), f"{key}.s_per_token"),
                    self.optional(figures.get("gap_p99_s"), f"{key}.gap_p99_s"),
                    self.optional(figures.get("ttft_p95_s"), f"{key}.ttft_p95_s"),
                    self.optional(figures.get("cost_per_good_usd"), f"{key}.cost_per_good_usd"),
                )
        if not out:
            self.refuse("is empty", "baseline", None, "decide anew")
        return out

    def fingerprint(self) -> Fingerprint:
        found = self.mapping(self.record["fingerprint"], "fingerprint")
        k = found.get("k")
        if k is not None and (not isinstance(k, int) or isinstance(k, bool) or k < 0):
            self.refuse("must be a whole number", "fingerprint.k", k, "decide anew")
        texts = {
            name: None if found.get(name) is None else self.text(found[name], f"fingerprint.{name}")
            for name in ("engine_version", "system_fingerprint", "model")
        }
        return Fingerprint(**texts, k=k)

    def labels(self) -> Labels:
        try:
            labels = read_labels(self.mapping(self.record["labels"], "labels"), file=self.file)
        except InputError as error:
            self.refuse(error.what, "labels", error.value, error.mend or "decide anew")
        if self.record["evidence"] != labels.evidence.value:
            mend = "labels and evidence must agree: decide anew"
            self.refuse("contradicts the labels", "evidence", self.record["evidence"], mend)
        return labels

    def cohorts(self) -> tuple[str, ...]:
        value = self.record["denied_cohorts"]
        if not isinstance(value, list):
            self.refuse("must be a list of cohorts", "denied_cohorts", value, "decide anew")
        return tuple(self.text(one, "denied_cohorts") for one in value)
