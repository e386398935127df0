"""Which trajectories live, and who belongs with whom?

By key, by group and counted by run, so that nobody has to walk all of them to find a few.
"""

from __future__ import annotations

from collections.abc import Iterator

from heddle.controller.dataplane.identity import Whose
from heddle.controller.journal import Journal
from heddle.controller.live import LiveTrajectory, Step
from heddle.controller.pins import Pin


class Table:
    """Trajectories that have not finished."""

    def __init__(self, journal: Journal) -> None:
        self.by_key: dict[str, LiveTrajectory] = {}
        self.open_rollout: dict[str, str] = {}
        self._groups: dict[tuple[str, str], dict[str, LiveTrajectory]] = {}
        self._count: dict[str, int] = {}
        self._pins = {f"{pin.run}/{pin.trajectory}": pin for pin in journal.pins()}

    @property
    def runs(self) -> list[str]:
        """Runs with a live trajectory."""
        return list(self._count)

    def of(self, whose: Whose, number: int) -> LiveTrajectory:
        """The trajectory of a request, made if it is new; what the request adds is noted."""
        key = f"{whose.run}/{whose.trajectory}"
        known = self.by_key.get(key)
        if known is None:
            known = LiveTrajectory(run=whose.run, id=whose.trajectory, number=number)
            if (pin := self._pins.pop(key, None)) is not None:
                known.comes_back(pin)
            self.by_key[key] = known
            self._count[whose.run] = self._count.get(whose.run, 0) + 1
        if whose.group and known.group is None:
            known.group = whose.group
            known.changed()
            self._groups.setdefault((whose.run, whose.group), {})[key] = known
        known.rollout = whose.rollout or known.rollout or self.open_rollout.get(whose.run)
        known.task = whose.task or known.task
        known.sample = whose.sample if whose.sample is not None else known.sample
        known.trace = whose.trace or known.trace
        return known

    def expect(self, pin: Pin) -> None:
        """One that left comes back: its prefix is there, its tool ran since."""
        self._pins[f"{pin.run}/{pin.trajectory}"] = pin

    def remove(self, trajectory: LiveTrajectory) -> bool:
        """It left: its fresh siblings' lengths look different now. False when it was not here."""
        if self.by_key.pop(trajectory.key, None) is None:
            return False
        self._count[trajectory.run] -= 1
        if not self._count[trajectory.run]:
            del self._count[trajectory.run]
        group = (trajectory.run, trajectory.group or "")
        siblings = self._groups.get(group, {})
        siblings.pop(trajectory.key, None)
        for sibling in siblings.values():
            if not sibling.steps:
                sibling.believed = None
        if not siblings:
            self._groups.pop(group, None)
        return True

    def waiting(self, run: str | None = None) -> list[Step]:
        """Every step that is held, of one run or of all."""
        return [s for t in self._of_run(run) for s in t.waiting]

    def away(self, since_ns: int) -> list[LiveTrajectory]:
        """Between two steps for longer than that."""
        return [t for t in self.by_key.values() if t.last_end_ns < since_ns and t.state == "tool"]

    def matching(self, *, rid: str | None, trajectory_id: str | None, every: bool) -> list[Step]:
        """Held and running steps of that trajectory or with that rid, or all."""
        return [
            step
            for trajectory in self.by_key.values()
            for step in [*trajectory.waiting, *trajectory.running]
            if every or trajectory.id == trajectory_id or _is_rid(step, rid)
        ]

    def _of_run(self, run: str | None) -> Iterator[LiveTrajectory]:
        return (t for t in self.by_key.values() if run is None or t.run == run)


def _is_rid(step: Step, rid: str | None) -> bool:
    ours = step.granted.rid if step.granted else None
    return rid is not None and rid in (step.client_rid, ours)
