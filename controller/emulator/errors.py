"""What can an emulated engine refuse? One tree, each text one sentence for a person."""

from __future__ import annotations


class EngineError(Exception):
    """Root: `code` is the HTTP status SGLang answers with."""

    code = 400


class BadRequest(EngineError):
    """The request cannot be served as asked."""


class EngineBusy(EngineError):
    """The operation needs an idle engine."""


class PortInUse(EngineError):
    """Another process listens there."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"port {port} on {host} is in use; stop what listens there or choose another --port"
        )
