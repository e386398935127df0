"""What can go wrong in the controller, as one tree; the text of each is one sentence for a person.

ControllerError
    BadRequest        the caller's mistake (HTTP 400)
    NotFound          nothing of that name (404)
    Conflict          another one is under way (409)
    NoWorker          nobody takes steps (503)
    EngineError       an engine refused or died
        EngineLost    before it answered: the step may go elsewhere (502)
        EngineFull    its queue takes no more for now (503)
    LaunchFailed      an engine did not come up (503)
    Aborted           a held step was told to stop (503)
    TooMany           a limit on how many at once (429)
"""

from __future__ import annotations


class ControllerError(Exception):
    """Root; `status` is the HTTP status it is answered with."""

    status = 500


class BadRequest(ControllerError):
    """The caller's mistake."""

    status = 400


class NotFound(ControllerError):
    """Nothing of that name."""

    status = 404


class Conflict(ControllerError):
    """Another one is under way."""

    status = 409


class NoWorker(ControllerError):
    """Nobody takes steps."""

    status = 503


class EngineError(ControllerError):
    """An engine refused or died."""

    status = 502


class EngineLost(EngineError):
    """The connection ended before an answer: nothing reached the client yet."""


class EngineFull(EngineError):
    """Its queue takes no more for now: again later, or elsewhere."""

    status = 503


class LaunchFailed(ControllerError):
    """An engine did not come up."""

    status = 503


class Aborted(ControllerError):
    """A held step was told to stop."""

    status = 503


class TooMany(ControllerError):
    """A limit on how many at once."""

    status = 429
