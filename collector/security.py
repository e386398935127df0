"""Who may send, ask, run SQL or delete, and is what this collector would listen on safe?

A token for each of the four; without one a door is open, which only loopback may be. Tokens are
compared in constant time and never logged. TLS comes from a certificate and a key in files.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from hmac import compare_digest
from pathlib import Path
from urllib.parse import urlsplit

from heddle.collector.errors import CollectorError


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a request must bring, by door; None lets everybody in."""

    ingest: str | None = field(default=None, repr=False)
    query: str | None = field(default=None, repr=False)
    sql: str | None = field(default=None, repr=False)
    admin: str | None = field(default=None, repr=False)
    """Sealing and deleting."""

    def missing(self) -> list[str]:
        """Doors without a token; nothing serves delete and seal where admin has none."""
        return [name for name in ("ingest", "query", "sql") if not getattr(self, name)]


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate chain and private key, PEM files."""

    certificate: Path
    key: Path

    def check(self) -> None:
        """CollectorError when a file cannot be read."""
        for path in (self.certificate, self.key):
            try:
                path.read_bytes()
            except OSError as error:
                message = f"the TLS file {path} cannot be read: {error.strerror}"
                raise CollectorError(message) from error


def tls_of(certificate: Path | None, key: Path | None) -> Tls | None:
    """Both files or none."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        message = "TLS needs both a certificate and a key file; only one was given"
        raise CollectorError(message)
    found = Tls(certificate, key)
    found.check()
    return found


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_own_name(header: str, host: str) -> bool:
    """Whether a Host header names this machine, or the address listened on.

    A page of another site whose name was made to resolve to 127.0.0.1 (DNS rebinding) sends its own
    name; an address cannot be made to resolve to another.
    """
    try:
        name = urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return False
    if not header or name in ("localhost", host.lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_bind(host: str, tokens: Tokens) -> None:
    """CollectorError when others could reach a door that has no token."""
    missing = tokens.missing()
    if missing and not is_loopback(host):
        message = (
            f"listening on {host} would let anyone in: set the {', '.join(missing)} token"
            f"{'s' if len(missing) > 1 else ''}, or listen on 127.0.0.1"
        )
        raise CollectorError(message)


def bearer(header: str, token: str | None) -> bool:
    """Whether an Authorization header brings the token; always when there is none."""
    return not token or compare_digest(header.encode(), f"Bearer {token}".encode())


def secret(value: str | None, path: Path | None, what: str) -> str | None:
    """A token as given, else the first line of its file."""
    if value or path is None:
        return value
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        message = f"the {what} token file {path} cannot be read: {error.strerror}"
        raise CollectorError(message) from error
    if not lines or not lines[0].strip():
        message = f"the {what} token file {path} is empty"
        raise CollectorError(message)
    return lines[0].strip()
