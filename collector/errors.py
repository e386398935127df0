"""Which failures does the collector name, and what does each say to do?

CollectorError
├── CollectorUnreachable   nobody answers at that address
├── QueryRefused           the collector answered, and refused the question
├── PortInUse              another process listens there
├── StoreHeld              another process holds the database file
├── StoreTooNew            a later Heddle wrote the file
├── StoreUnwritable        the disk or the database refuses to write
├── Unstorable             this request holds something the store cannot keep
└── Overloaded             more bytes wait for the disk than the bound allows: try again later
"""

from __future__ import annotations


class CollectorError(Exception):
    """Base of everything the collector raises on purpose; its text is one sentence for a person."""


class CollectorUnreachable(CollectorError):
    """Nobody answers at that address."""


class QueryRefused(CollectorError):
    """The collector answered, and refused the question."""


class PortInUse(CollectorError):
    """Another process listens there."""

    def __init__(self, host: str, port: int, what: str) -> None:
        super().__init__(
            f"port {port} on {host} is in use, and the collector wants it for {what}: "
            "stop whoever holds it or choose another port"
        )
        self.port = port


class StoreHeld(CollectorError):
    """Another process holds the database file."""


class StoreTooNew(CollectorError):
    """A later Heddle wrote the file."""


class Overloaded(CollectorError):
    """More bytes wait for the disk than the bound allows."""

    def __init__(self, waiting_bytes: int, bound_bytes: int, retry_after_s: int = 1) -> None:
        super().__init__(
            f"{waiting_bytes} bytes of spans wait for the disk and the bound is {bound_bytes}: "
            f"send again in {retry_after_s} s"
        )
        self.retry_after_s = retry_after_s


class StoreUnwritable(CollectorError):
    """The disk or the database refuses to write; what was sent is not stored."""


class Unstorable(CollectorError):
    """This request holds something the store cannot keep; sending it again does not help."""


def remedy(error: Exception, option: str) -> str:
    """What to do when a collector cannot be reached."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "where its certificate is of a private authority, set SSL_CERT_FILE"
    return f"start one (heddle up, or heddle collect), or name the one that runs: {option} URL"
