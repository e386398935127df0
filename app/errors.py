"""What can a person get wrong, and how is it said?

AppError                 one sentence on stderr, exit code 2
├── MissingExtra         a library of an extra is not installed
├── PortInUse            another process listens where we wanted to
├── ChildDied            a process we started ended by itself
├── PortLost             somebody else answers on the port we gave a process
└── NotHealthy           a process we started never answered
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn


class AppError(Exception):
    """A sentence for a person: what was wrong, what was expected, what to do."""


class MissingExtra(AppError):
    """A command needs a library that the base install does not bring."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(
            f"this needs {module}; install it with: pip install 'heddle-rollout[{extra}]'"
        )


class PortInUse(AppError):
    """Somebody else listens on the port."""

    def __init__(self, port: int, what: str, remedy: str) -> None:
        super().__init__(f"port {port}, wanted for the {what}, is in use; {remedy}")


class ChildDied(AppError):
    """A child ended before we asked it to; the sentence carries the end of its log."""

    def __init__(self, name: str, code: int, log: Path, tail: str) -> None:
        self.tail = tail
        ending = f"\n{tail}" if tail else " (its log is empty)"
        super().__init__(
            f"the {name} ended with exit code {code}; its log {log} ends with:{ending}"
        )


class PortLost(AppError):
    """Free when it was chosen, another process's when the child wanted it."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(f"port {port}, free a moment ago, was taken before the {name} had it")


class NotHealthy(AppError):
    """A child runs but does not answer in time."""

    def __init__(self, name: str, url: str, seconds: float, log: Path) -> None:
        super().__init__(f"the {name} did not answer on {url} within {seconds:.0f} s; see {log}")


def fail(sentence: str) -> NoReturn:
    """End the command with a sentence."""
    raise AppError(sentence)
