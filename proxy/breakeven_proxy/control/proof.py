"""The certificate's file, read for the settings in force."""

from __future__ import annotations

from pathlib import Path

from breakeven.certificate import Certificate, check_usable, read_certificate
from breakeven.errors import CertificateError
from breakeven_proxy.config import ProxySettings


def load_certificate(settings: ProxySettings) -> Certificate | None:
    """The configured certificate, or None without one.

    An expired one is taken all the same: it keeps the candidate out (state `refused`), while
    refusing to start, after a pod was moved say, would take the baseline out as well.

    Raises:
        CertificateError: unreadable, damaged, or proven under other settings than these.
    """
    path = settings.certificate
    if path is None:
        return None
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise CertificateError(
            f"cannot be read: {error.strerror}", file=path, mend="give loadgen decide's file"
        ) from None
    certificate = read_certificate(text, file=path)
    check_usable(
        certificate,
        file=path,
        now=certificate.created,  # expiry is a state, see above
        epsilon_s=settings.epsilon_s,
        load_classes=settings.classes(),
    )
    _check_slo(certificate, settings, path)
    return certificate


def _check_slo(certificate: Certificate, settings: ProxySettings, path: str) -> None:
    """Goodput that was proven under other bounds says nothing of these."""
    ours: dict[str, object] = {**settings.slo.slo().bounds(), "objective": settings.slo.objective}
    theirs: dict[str, object] = {
        **certificate.slo.bounds(),
        "objective": certificate.slo.objective,
    }
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            raise CertificateError(
                "proven under another SLO than the one in force",
                file=path,
                key=f"slo.{key}",
                value=theirs.get(key, "no bound"),
                mend=f"set slo.{key} to it (now {ours.get(key, 'no bound')}), or decide anew",
            )
