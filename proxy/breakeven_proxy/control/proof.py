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
    return certificate
