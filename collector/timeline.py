"""What was one trajectory doing at every instant of its life?

A pure partition: where activities overlap (parallel calls of one agent) the one that engines work
on comes first, so each nanosecond counts once.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple, TypeAlias

from heddle.collector.activities import Activity, Kind

Doing: TypeAlias = Literal[
    "decode", "prefill", "move", "queued", "held", "tool", "unknown", "orchestrator",
    "not_started", "closing",
]  # fmt: skip
RANKED: Final[dict[Kind, Doing]] = {
    "decode": "decode",
    "prefill": "prefill",
    "move": "move",
    "queued": "queued",
    "held": "held",
    "tool": "tool",
    "opaque": "unknown",
    "live": "orchestrator",
}
_RANK: Final = {kind: rank for rank, kind in enumerate(RANKED)}


class Segment(NamedTuple):
    """One piece of a trajectory's time; *name* is the tool's."""

    doing: Doing
    start_ns: int
    end_ns: int
    worker_id: str = ""
    name: str = ""

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


def timeline(mine: Sequence[Activity], start_ns: int, end_ns: int) -> list[Segment]:
    """[start_ns, end_ns) cut into what one trajectory did, adjacent equals merged.

    Before its first activity it has `not_started`, after its last one the rollout is `closing`, a
    hole between them is `unknown`. Of equal activities the one that ends last counts.
    """
    first_ns = min((x.start_ns for x in mine), default=end_ns)
    last_ns = max((x.end_ns for x in mine), default=end_ns)
    edges = {t for x in mine for t in x[2:4] if start_ns < t < end_ns}
    coming = sorted(mine, key=lambda x: x.start_ns, reverse=True)
    active: list[tuple[int, int, str, str, Kind, int]] = []
    segments: list[Segment] = []
    for lo, hi in pairwise(sorted(edges | {start_ns, end_ns})):
        while coming and coming[-1].start_ns <= lo:
            x = coming.pop()
            heapq.heappush(
                active, (_RANK[x.kind], -x.end_ns, x.name, x.worker_id, x.kind, x.end_ns)
            )
        while active and active[0][-1] <= lo:
            heapq.heappop(active)
        if active:
            _, _, name, worker_id, kind, _ = active[0]
            _extend(segments, Segment(RANKED[kind], lo, hi, worker_id, name))
        else:
            _extend(segments, Segment(_absent(lo, first_ns, last_ns), lo, hi))
    return segments


def _absent(at_ns: int, first_ns: int, last_ns: int) -> Doing:
    if at_ns < first_ns:
        return "not_started"
    return "closing" if at_ns >= last_ns else "unknown"


def _extend(segments: list[Segment], new: Segment) -> None:
    last = segments[-1] if segments else None
    if last and (last.doing, *last[3:]) == (new.doing, *new[3:]):
        segments[-1] = last._replace(end_ns=new.end_ns)
    else:
        segments.append(new)


def totals(segments: Iterable[Segment]) -> dict[Doing, int]:
    """Nanoseconds by what was done, in order of appearance."""
    spent: dict[Doing, int] = defaultdict(int)
    for segment in segments:
        spent[segment.doing] += segment.duration_ns
    return dict(spent)
