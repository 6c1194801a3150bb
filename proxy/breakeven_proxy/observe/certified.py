"""The certificate as gauges: the frozen baseline, the proven range, when it ends."""

from __future__ import annotations

from breakeven.certificate import Certificate
from breakeven_proxy.observe.engine import EngineReader
from breakeven_proxy.observe.metrics import Metrics

FIGURES = {
    "certified_baseline_seconds_per_token": "s_per_token",
    "certified_baseline_gap_p99_seconds": "gap_p99_s",
    "certified_baseline_ttft_p95_seconds": "ttft_p95_s",
    "certified_baseline_cost_per_good_usd": "cost_per_good_usd",
}


def show_certificate(metrics: Metrics, certificate: Certificate | None, *, holds: bool) -> None:
    """Sets the gauges; a figure that was not measured has no series.

    A certificate that does not hold (expired, another engine) shows its expiry and nothing that
    a rule could compare with.
    """
    families = (
        *FIGURES,
        "certificate_info",
        "certificate_expires_timestamp_seconds",
        "certified_range_requests_per_second",
        "certified_rollback_headroom_rps",
    )
    for name in families:
        metrics[name].cells.clear()
    if certificate is None:
        return
    metrics["certificate_expires_timestamp_seconds"].set(certificate.expires.timestamp())
    metrics["certificate_info"].set(1 if holds else 0, certificate.evidence.value)
    if not holds:
        return
    metrics["certified_range_requests_per_second"].set(certificate.min_rps, "min")
    metrics["certified_range_requests_per_second"].set(certificate.max_rps, "max")
    if certificate.rollback_headroom_rps is not None:
        metrics["certified_rollback_headroom_rps"].set(certificate.rollback_headroom_rps)
    for (cohort, load), frozen in certificate.baseline.items():
        for name, figure in FIGURES.items():
            value = getattr(frozen, figure)
            if value is not None:
                metrics[name].set(value, cohort, load)


def engine_contradicts(
    certificate: Certificate, reader: EngineReader, *, system_fingerprint: str | None
) -> str | None:
    """What of the running candidate contradicts the certificate, with the mend; None if nothing.

    What is unknown on either side contradicts nothing.
    """
    proven, page = certificate.fingerprint, reader.latest
    pairs = (
        ("engine version", proven.engine_version, reader.version),
        ("system_fingerprint", proven.system_fingerprint, system_fingerprint),
        ("k", proven.k, None if page is None else page.k),
    )
    for name, wanted, found in pairs:
        if wanted is not None and found is not None and wanted != found:
            return f"{name} is {found}, proven was {wanted}: decide anew for this engine"
    models = () if page is None else page.models
    if proven.model is not None and models and proven.model not in models:
        return (
            f"the engine does not serve the proven model {proven.model}: serve it, or decide anew"
        )
    return None
