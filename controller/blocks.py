"""Which GPUs does each engine hold, which engines sleep there, and may one more?

An engine that sleeps keeps its process and, for a quick return, one copy of its weights in the
node's memory: counted before, refused where it does not fit. An engine woken under a new worker id
keeps the process it had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from heddle.controller.core.regroup import Place
from heddle.controller.fleet.engine import Capabilities

SPARE_SHARE: Final = 0.1
"""Of the node's memory that is left to everything else."""


class Sleeper(NamedTuple):
    """A process whose engine sleeps, by the worker id it was started under."""

    worker: str
    url: str


class Blocks:
    """Who holds which block; one layout is awake."""

    def __init__(
        self,
        can: Mapping[str, Capabilities],
        *,
        weight_bytes: int,
        host_bytes: Sequence[int] = (),
        why_not: str = "",
    ) -> None:
        self.of: dict[str, Place] = {}
        self.asleep: dict[Place, Sleeper] = {}
        self.version = ""
        """The weights that the serving engines say; empty while none serves."""
        self._can = can
        self._weight_bytes = weight_bytes
        self._host_bytes = host_bytes
        self._why_not = why_not
        self._falling: set[str] = set()
        self._processes: dict[str, str] = {}
        """Worker id -> the id its process was started under, where they differ."""

    def began(self, worker_id: str, place: Place) -> None:
        """Its engine holds those GPUs."""
        self.of[worker_id] = place

    def ended(self, worker_id: str) -> None:
        """It holds nothing."""
        self._falling.discard(worker_id)
        self.of.pop(worker_id, None)
        self._processes.pop(worker_id, None)

    def process_of(self, worker_id: str) -> str:
        """What the launcher calls its process."""
        return self._processes.get(worker_id, worker_id)

    def worker_of(self, process: str) -> str:
        """Which worker that process serves as now."""
        known = (w for w, started in self._processes.items() if started == process)
        return next(known, process)

    def falls_asleep(self, worker_id: str) -> bool:
        """Whether it is put to sleep instead of stopped; its room is taken if so."""
        if self.why_stop(worker_id):
            return False
        self._falling.add(worker_id)
        return True

    def fell_asleep(self, worker_id: str, url: str) -> None:
        """It may be woken at its place."""
        self.asleep[self.of[worker_id]] = Sleeper(self.process_of(worker_id), url)
        self.ended(worker_id)

    def asleep_at(self, place: Place) -> Sleeper | None:
        """Who sleeps on exactly that block."""
        return self.asleep.get(place)

    def woke(self, place: Place, worker_id: str) -> None:
        """It serves under that id now."""
        sleeper = self.asleep.pop(place)
        self.of[worker_id] = place
        if sleeper.worker != worker_id:
            self._processes[worker_id] = sleeper.worker

    def died(self, process: str) -> bool:
        """It ended in its sleep; False when it was not asleep."""
        found = [place for place, sleeper in self.asleep.items() if sleeper.worker == process]
        for place in found:
            del self.asleep[place]
        return bool(found)

    def why_stop(self, worker_id: str) -> str:
        """Why it is stopped and not put to sleep; empty: it sleeps."""
        if self._why_not:
            return self._why_not
        if not self._can.get(worker_id, Capabilities()).memory_saver:
            return "it runs without --enable-memory-saver"
        return self.no_room(self.of[worker_id].node, 1)

    def no_room(self, node: int, more: int) -> str:
        """Why the node's memory does not take the weights of so many more sleepers."""
        if node >= len(self._host_bytes):
            return "the memory of its node is not known"
        asleep = sum(place.node == node for place in self.asleep) + more
        asleep += sum(self.of[worker].node == node for worker in self._falling)
        needed = asleep * self._weight_bytes
        room = int(self._host_bytes[node] * (1 - SPARE_SHARE))
        if needed <= room:
            return ""
        return (
            f"{asleep} sleeping engines need {needed / 1e9:.0f} GB of host memory for their "
            f"weights, node {node} has {room / 1e9:.0f} GB to spare"
        )
