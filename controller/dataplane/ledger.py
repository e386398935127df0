"""Which trajectories were here lately, and what does a span of a whole one say?

The last ones by run and id, so that a reward that comes after the last step still finds where to
go. A client's own span of the trajectory has the same id and ends later: it replaces this one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from heddle.collector import conventions as c
from heddle.collector import ids

KEPT: Final = 65_536
"""About 40 MB: ten times the trajectories of a large rollout."""


@dataclass(slots=True)
class Entry:
    """One trajectory from its first step's arrival to its latest step's end."""

    run: str
    trajectory: str
    trace_id: str
    parent: str | None
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    labels: object = None
    """What `attributes` were made of: the same object means that there is nothing new."""

    def span(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of its span; every call ends a nanosecond later, so that it replaces."""
        self.end_ns += 1
        self.attributes |= {k: v for k, v in said.items() if v is not None}
        own = {"gen_ai.operation.name": c.INVOKE_AGENT, "gen_ai.agent.name": "agent"}
        return {
            "name": f"{c.INVOKE_AGENT} agent",
            "trace_id": self.trace_id,
            "span_id": ids.trajectory_span_id(self.run, self.trajectory),
            "parent_span_id": self.parent,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "attributes": {**self.attributes, **own},
        }


class Ledger:
    """Remembers the last KEPT trajectories."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._entries: OrderedDict[tuple[str, str], Entry] = OrderedDict()

    def note(self, entry: Entry) -> Entry:
        """A step ended: its trajectory reaches from its first arrival to now."""
        key = (entry.run, entry.trajectory)
        known = self._entries.pop(key, None)
        if known is not None:
            entry.start_ns = min(known.start_ns, entry.start_ns)
            entry.end_ns = max(known.end_ns, entry.end_ns)
            entry.attributes = {**known.attributes, **entry.attributes}
        self._entries[key] = entry
        if len(self._entries) > self._kept:
            self._entries.popitem(last=False)
        return entry

    def get(self, run: str, trajectory: str) -> Entry | None:
        """That trajectory, if it was here lately."""
        return self._entries.get((run, trajectory))

    def extend(self, run: str, trajectory: str, labels: object, end_ns: int) -> Entry | None:
        """One more step of a trajectory of which nothing else is new; None where something is."""
        key = (run, trajectory)
        known = self._entries.get(key)
        if known is None or known.labels is not labels:
            return None
        known.end_ns = max(known.end_ns, end_ns)
        self._entries.move_to_end(key)
        return known
