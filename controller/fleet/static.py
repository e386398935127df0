"""Which engines are there when somebody else started them?

Addresses given at start or registered later; nothing is launched and no degree can change.
"""

from __future__ import annotations

from heddle.controller.core.regroup import Place
from heddle.controller.errors import LaunchFailed
from heddle.controller.fleet.launcher import Ended, Health, Returned, Started, nobody


class StaticLauncher:
    """Takes engines as they are."""

    kind = "static"
    nodes: tuple[int, ...] = ()
    why_not = "the engines are not started here"

    def __init__(self) -> None:
        self.ended: Ended = nobody
        self.returned: Returned = nobody

    async def open(self) -> None:
        """Nothing to reach."""

    async def start(self, worker_id: str, place: Place) -> Started:
        """Never."""
        _ = place
        message = f"worker {worker_id} cannot be started: {self.why_not}"
        raise LaunchFailed(message)

    async def end(self, worker_id: str) -> None:
        """Nothing was started here."""

    def health(self) -> dict[str, Health]:
        """Nothing is kept."""
        return {}

    async def stop(self) -> None:
        """Nothing was started here."""
