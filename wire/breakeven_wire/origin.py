"""Where an engine is: scheme, host and port of a URL, with the path prefix it may have."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from breakeven.errors import InputError

DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """An engine's address.

    `prefix` is the path of the URL without a trailing slash and without a final `/v1`, so that
    `http://host:8000`, `http://host:8000/` and `http://host:8000/v1` are the same engine.
    """

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @classmethod
    def parse(cls, url: str) -> Origin:
        """The origin of an http or https URL.

        Raises:
            InputError: no http(s) URL, no host, a port out of range, or credentials, a query or
                a fragment in it.
        """
        mend = "write it as http://HOST:PORT"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InputError(f"not a URL: {error}", value=url, mend=mend) from None
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
            raise InputError("not an http:// or https:// URL", value=url, mend=mend)
        if parts.username is not None or parts.password is not None:
            raise InputError("credentials do not belong into a URL", mend=mend)
        if parts.query or parts.fragment:
            raise InputError("a query or fragment does not belong here", value=url, mend=mend)
        if any(c.isspace() or ord(c) < 33 for c in url):
            raise InputError("white space in a URL", value=url, mend=mend)
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        number = DEFAULT_PORTS[parts.scheme] if port is None else port
        if number == 0:
            raise InputError("port 0 is no address", value=url, mend=mend)
        return cls(parts.scheme, parts.hostname, number, prefix)

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """The value of the Host header: no default port, IPv6 in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.prefix}"


def tls_context(*, ca_file: str | None = None, verify: bool = True) -> ssl.SSLContext:
    """A client TLS context: certificates verified against the system's store or `ca_file`.

    Raises:
        InputError: the CA file is missing or holds no certificate.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InputError(
            f"CA file cannot be used: {error}", value=ca_file, mend="give a PEM file"
        ) from None
    context.set_alpn_protocols(["http/1.1"])
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
