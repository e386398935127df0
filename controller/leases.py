"""How does an engine become a worker again, and what do the rollouts hear of it?"""

from __future__ import annotations

from heddle.controller.fleet.launcher import Started
from heddle.controller.fleet.workers import Met
from heddle.controller.live import LiveWorker
from heddle.controller.loop import Loop


class Leases:
    """Takes engines into the fleet and tells its listeners (those of a worker lost and back)."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    async def rejoin(
        self, worker_id: str, started: Started, since_ns: int, met: Met | None = None
    ) -> LiveWorker:
        """It takes steps from now on; its GPUs are its own since then. One that was `met` is not
        asked again what it is."""
        fleet = self._loop.fleet
        worker = await fleet.join(worker_id, started.url, started.degree, launched=True, met=met)
        worker.joined_ns = since_ns
        fleet.joined(worker)
        self._loop.poke()
        return worker

    def left(self, worker: LiveWorker) -> None:
        """Its GPUs are free."""
        self._loop.fleet.left(worker)
        self._loop.fleet.leave(worker.id)
