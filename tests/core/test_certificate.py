"""The certificate: read back as written, refused when damaged, expired or proven otherwise."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from breakeven.certificate import (
    Certificate,
    Fingerprint,
    FrozenBaseline,
    certificate_json,
    check_usable,
    checksum,
    read_certificate,
)
from breakeven.errors import CertificateError
from breakeven.load import LoadClasses
from breakeven.provenance import AcceptanceKind, ContentKind, EngineKind, Evidence, Labels
from breakeven.slo import SLO

CREATED = datetime(2026, 11, 30, 15, tzinfo=UTC)
CERTIFICATE = Certificate(
    created=CREATED,
    expires=CREATED + timedelta(days=30),
    arm="draft-k4",
    slo=SLO(ttft_s=0.5, tpot_s=0.03, gap_p99_s=0.1, e2e_s=20, objective=0.99),
    epsilon_s=0.002,
    load_classes=LoadClasses(4, 12),
    min_rps=0.5,
    max_rps=11.2,
    baseline={
        ("chat-en", "low"): FrozenBaseline(0.0104, 0.021, 0.12, 0.0003),
        ("chat-en", "normal"): FrozenBaseline(0.0131, None, 0.2, None),
    },
    rollback_headroom_rps=9.5,
    fingerprint=Fingerprint("0.33.0", "vllm-0.33.0-abc", "m", 4),
    labels=Labels(EngineKind.REAL, ContentKind.PUBLIC_PROXY, AcceptanceKind.MEASURED),
    denied_cohorts=("code",),
    policy={"enter_rps": 9.0},
)


def record(**changes: Any) -> str:
    """The certificate with changes, its checksum made to fit again."""
    found = json.loads(certificate_json(CERTIFICATE)) | changes
    found = {key: value for key, value in found.items() if value is not ...}
    return json.dumps(found | {"sha256": checksum(found)})


def test_what_is_written_is_read_back() -> None:
    """Every field survives."""
    assert read_certificate(certificate_json(CERTIFICATE), file="c.json") == CERTIFICATE


def test_evidence_follows_from_the_labels() -> None:
    """A simulated engine makes a method check."""
    simulated = replace(CERTIFICATE.labels, engine=EngineKind.SIMULATED)
    found = json.loads(certificate_json(replace(CERTIFICATE, labels=simulated)))
    assert found["evidence"] == "method_check"
    assert CERTIFICATE.evidence is Evidence.EVIDENCE


def test_a_changed_figure_breaks_the_checksum() -> None:
    """Damage and hand edits are seen."""
    text = certificate_json(CERTIFICATE).replace("11.2", "99.0")
    with pytest.raises(CertificateError, match="checksum") as caught:
        read_certificate(text, file="c.json")
    assert caught.value.file == "c.json"
    assert caught.value.mend


def test_the_checksum_does_not_depend_on_the_order_of_keys_or_spaces() -> None:
    """A tool that re-formats the JSON breaks nothing."""
    found = json.loads(certificate_json(CERTIFICATE))
    shuffled = json.dumps(dict(reversed(found.items())), indent=7)
    assert read_certificate(shuffled, file="c.json") == CERTIFICATE


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no JSON"),
        ("[1]", "no JSON object"),
        ('{"breakeven_certificate": NaN}', "finite"),
        (record(breakeven_certificate=2), "known version"),
        (record(breakeven_certificate=True), "known version"),
        (record(slo=...), "slo: field is missing"),
        (record(extra=1), "extra: unknown field"),
        (record(created="yesterday"), "created: must be a time"),
        (record(created="2026-11-30T15:00:00"), "time zone"),
        (record(expires="2026-11-01T00:00:00Z"), "expires before"),
        (record(range={"min": 5, "max": 1}), "min lies above max"),
        (record(range={"min": 5}), "min and max"),
        (record(range={"min": 0, "max": 0}), "range.max: must be a number above 0"),
        (record(epsilon_s="2ms"), "epsilon_s: must be a number"),
        (record(epsilon_s=True), "epsilon_s: must be a number"),
        (record(load_classes={"low_max": 12, "normal_max": 4}), "must rise"),
        (record(load_classes={"low": 1}), "low_max and normal_max"),
        (record(slo={"ttft": 1}), "unknown bound"),
        (record(baseline={}), "is empty"),
        (record(baseline={"a": {"high": {"s_per_token": 1}}}), "unknown load class"),
        (record(baseline={"a": {"low": {}}}), "s_per_token"),
        (record(baseline={"a": {"low": {"s_per_token": 1, "x": 1}}}), "unknown figure"),
        (record(fingerprint={"k": -1}), "fingerprint.k"),
        (record(labels={"engine": "reel"}), "unknown label"),
        (record(evidence="method_check"), "contradicts the labels"),
        (record(denied_cohorts="code"), "list of cohorts"),
        (record(rollback_headroom_rps=-1), "rollback_headroom_rps"),
    ],
)
def test_what_cannot_be_is_refused(text: str, what: str) -> None:
    """Each fault names its field; a certificate with a fitting checksum can still be wrong."""
    with pytest.raises(CertificateError, match=what):
        read_certificate(text, file="c.json")


def use(**changes: Any) -> None:
    settings: dict[str, Any] = {
        "now": CREATED + timedelta(days=1),
        "epsilon_s": 0.002,
        "load_classes": LoadClasses(4, 12),
    }
    check_usable(CERTIFICATE, file="c.json", **(settings | changes))


def test_a_fitting_certificate_is_usable() -> None:
    """Same epsilon, same classes, not expired."""
    use()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"now": CREATED + timedelta(days=30)}, "expired"),
        ({"epsilon_s": 0.003}, r"epsilon_s.*set epsilon_s: 0.002 \(now 0.003\)"),
        ({"load_classes": LoadClasses(4, 16)}, r"load_classes.*now 4, 16"),
    ],
)
def test_other_settings_are_refused_with_the_mend(changes: dict[str, Any], what: str) -> None:
    """T is compared within a class, a gap under one epsilon."""
    with pytest.raises(CertificateError, match=what):
        use(**changes)
