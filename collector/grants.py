"""Who holds how many GPUs when, once overlapping leases and excess are settled?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple


class Window(NamedTuple):
    """A rollout, or a fixed interval where rollouts overlap."""

    start_ns: int
    end_ns: int


class Lease(NamedTuple):
    """One worker holds *degree* GPUs for a while; a change of degree is another lease."""

    worker_id: str
    degree: int
    start_ns: int
    end_ns: int


class Grant(NamedTuple):
    """GPUs one worker really has for a while; None: nobody has them."""

    worker_id: str | None
    degree: int
    start_ns: int
    end_ns: int
    gpus: int


@dataclass(slots=True)
class Granted:
    """Grants of every worker, in order of time, and of nobody."""

    grants: dict[str | None, list[Grant]] = field(default_factory=dict[str | None, list[Grant]])
    over_leased_ns: int = 0


def grant(window: Window, gpus: int, leases: Sequence[Lease]) -> Granted:
    """The window cut at every lease's edge.

    Of two leases of one worker the one that started last holds. Where leases exceed *gpus*, those
    that started first keep theirs (ties: by worker id) and the rest gets what is left.
    """
    cut = [lease for lease in leases if lease.degree > 0 and _overlaps(window, lease)]
    cut.sort(key=lambda lease: (lease.start_ns, lease.end_ns, lease.degree))
    edges = {window.start_ns, window.end_ns}
    for lease in cut:
        edges |= {max(lease.start_ns, window.start_ns), min(lease.end_ns, window.end_ns)}
    granted = Granted()
    for start_ns, end_ns in pairwise(sorted(edges)):
        holds = {x.worker_id: x for x in cut if x.start_ns <= start_ns and x.end_ns >= end_ns}
        _share(granted, gpus, list(holds.values()), start_ns, end_ns)
    return granted


def _overlaps(window: Window, lease: Lease) -> bool:
    start_ns = max(lease.start_ns, window.start_ns)
    return start_ns < min(lease.end_ns, window.end_ns)


def _share(granted: Granted, gpus: int, holds: list[Lease], start_ns: int, end_ns: int) -> None:
    """Hand out *gpus* over one piece of time, first come first served."""
    left = gpus
    for worker_id, degree, _, _ in sorted(holds, key=lambda x: (x.start_ns, x.worker_id)):
        width = min(degree, left)
        left -= width
        granted.over_leased_ns += (degree - width) * (end_ns - start_ns)
        if width:
            _extend(granted, Grant(worker_id, degree, start_ns, end_ns, width))
    if left:
        _extend(granted, Grant(None, 0, start_ns, end_ns, left))


def _extend(granted: Granted, new: Grant) -> None:
    """Append, or lengthen the last grant where the new one merely continues it."""
    mine = granted.grants.setdefault(new.worker_id, [])
    last = mine[-1] if mine else None
    if last and (last[:2], last.end_ns, last.gpus) == (new[:2], new.start_ns, new.gpus):
        mine[-1] = last._replace(end_ns=new.end_ns)
    else:
        mine.append(new)
