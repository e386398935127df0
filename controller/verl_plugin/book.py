"""What does verl's router know of trajectories, groups and rollouts that nobody tells it?

A request id names a trajectory and its steps are counted; samples of one prompt begin with the same
token ids, so the first prompt names the group; a rollout is what happens between two quiet times.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b


@dataclass(slots=True)
class Trajectory:
    """One request id of verl's, from its first acquire."""

    id: str
    rollout: str
    group: str
    sample: int
    step: int = 0
    """The next one."""
    prompt: array[int] | None = None
    """Of the step under way, where moves should be able to carry it."""
    rid: str | None = None
    """Of the step under way, as the controller calls it."""
    server: str | None = None
    """Where the router itself last sent it while the controller was away."""
    busy: bool = False
    free: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no step is under way: an actor's calls may overtake each other."""
    seen_s: float = 0.0


@dataclass(slots=True)
class Book:
    """Everything known of the live trajectories; `now_s` is the caller's clock."""

    trajectories: dict[str, Trajectory] = field(default_factory=dict[str, Trajectory])
    last_s: float = 0.0
    """When anything last came or went."""
    _samples: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    @property
    def busy(self) -> int:
        """Steps asked for and not released."""
        return sum(t.busy for t in self.trajectories.values())

    def arrive(
        self, request_id: str, rollout: str, prompt_ids: Sequence[int], now_s: float
    ) -> Trajectory:
        """A step begins; a request id seen for the first time begins a trajectory."""
        known = self.trajectories.get(request_id)
        if known is None:
            group = group_of(prompt_ids)
            sample = self._samples.get((rollout, group), 0)
            self._samples[rollout, group] = sample + 1
            known = Trajectory(request_id, rollout, group, sample)
            self.trajectories[request_id] = known
        known.busy, known.seen_s, self.last_s = True, now_s, now_s
        known.free.clear()
        return known

    def leave(self, trajectory: Trajectory, *, ended: bool, now_s: float) -> None:
        """The step is over; one that was aborted goes on under the same number."""
        trajectory.step += ended
        trajectory.rid = None
        trajectory.busy = False
        trajectory.free.set()
        trajectory.seen_s = self.last_s = now_s

    def over(self, before_s: float) -> list[Trajectory]:
        """Take out those that have not been seen since."""
        gone = [t for t in self.trajectories.values() if not t.busy and t.seen_s <= before_s]
        for trajectory in gone:
            del self.trajectories[trajectory.id]
        return gone

    def begin(self) -> None:
        """A rollout begins: samples are counted anew."""
        self._samples.clear()


def group_of(prompt_ids: Sequence[int]) -> str:
    """The name of everyone who begins with exactly these tokens."""
    digest = blake2b(array("q", prompt_ids).tobytes(), digest_size=6).hexdigest()
    return f"prompt-{digest}"
