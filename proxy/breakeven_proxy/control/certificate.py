"""Loads the certificate that a decision wrote, and refuses one proven under other settings."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from breakeven.certificate import Certificate, check_usable, read_certificate
from breakeven.errors import CertificateError
from breakeven_proxy.config import ProxySettings


def load_certificate(settings: ProxySettings, now: datetime | None = None) -> Certificate | None:
    """The certificate of the configuration, checked against it; None where none is named.

    Raises:
        CertificateError: unreadable, damaged, expired, or of another ε, SLO or load classes.
    """
    file = settings.certificate
    if file is None:
        return None
    try:
        text = Path(file).read_bytes()
    except OSError as error:
        raise CertificateError(
            f"cannot be read: {error.strerror}", file=file, mend="give the file of loadgen decide"
        ) from None
    certificate = read_certificate(text, file=file)
    check_usable(
        certificate,
        file=file,
        now=now or datetime.now(UTC),
        epsilon_s=settings.epsilon_s,
        load_classes=settings.classes(),
    )
    _check_slo(certificate, settings, file)
    return certificate


def _check_slo(certificate: Certificate, settings: ProxySettings, file: str) -> None:
    """Goodput proven under other bounds says nothing of these."""
    ours = {**settings.slo.slo().bounds(), "objective": settings.slo.objective}
    theirs = {**certificate.slo.bounds(), "objective": certificate.slo.objective}
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            proven = theirs.get(key, "no bound")
            raise CertificateError(
                "proven under another SLO than the one in force",
                file=file,
                key=f"slo.{key}",
                value=proven,
                mend=f"set slo.{key} to it (now {ours.get(key, 'no bound')}), or decide anew",
            )


def fingerprint_problem(
    certificate: Certificate,
    *,
    version: str | None,
    system_fingerprint: str | None,
    models: tuple[str, ...],
    k: int | None,
) -> str | None:
    """What of the running engine contradicts the certificate; None when nothing is known to.

    Args:
        version, system_fingerprint, models, k: as the candidate shows them; None or empty is
            unknown and contradicts nothing.
    """
    proven = certificate.fingerprint
    pairs = (
        ("engine version", proven.engine_version, version),
        ("system_fingerprint", proven.system_fingerprint, system_fingerprint),
        ("k", proven.k, k),
    )
    for name, wanted, found in pairs:
        if wanted is not None and found is not None and wanted != found:
            return f"{name} is {found}, proven was {wanted}: decide anew for this engine"
    if proven.model is not None and models and proven.model not in models:
        return f"the engine does not serve the proven model {proven.model}"
    return None
