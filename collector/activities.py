"""What was observed on a worker when, one by one or as columns?

`Columns` holds hundreds of thousands of activities as integer arrays with tables of names, and
reads as a sequence of Activity. An end of OPEN stands for "still lasts": `closed` puts an instant
there, so that what goes on does not change from one look to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args, overload

import numpy as np
import numpy.typing as npt

Kind: TypeAlias = Literal[
    "held", "queued", "prefill", "decode", "tool", "move", "live", "opaque",
    "weight_sync", "reallocation", "down", "covered",
]  # fmt: skip
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
KIND: Final = {kind: code for code, kind in enumerate(KINDS)}
LIVE_KINDS: Final[tuple[Kind, ...]] = KINDS[:8]
"""Activities of a trajectory: while one lasts, the trajectory is live on that worker."""
LIVE: Final = len(LIVE_KINDS)
OPEN: Final = 1 << 62
NONE: Final = int(np.iinfo(np.int64).min)
"""Stands for null in integer columns."""
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


class Activity(NamedTuple):
    """Something observed on a worker. *name* is the tool's, where the kind is tool."""

    worker_id: str
    kind: Kind
    start_ns: int
    end_ns: int
    trajectory_id: str = ""
    name: str = ""


class Names:
    """Codes of names in order of appearance; a code is kept for good."""

    def __init__(self, first: Iterable[str] = ()) -> None:
        self.codes: dict[str, int] = {}
        self.names: list[str] = []
        self._ranks = np.zeros(0, np.int64)
        for name in first:
            self.code(name)

    def __len__(self) -> int:
        return len(self.names)

    def code(self, name: str) -> int:
        """Of *name*, given at first sight."""
        if name not in self.codes:
            self.codes[name] = len(self.names)
            self.names.append(name)
        return self.codes[name]

    def many(self, names: Iterable[str]) -> Ints:
        """Codes of many names."""
        return ints([self.code(name) for name in names])

    @property
    def ranks(self) -> Ints:
        """Of each code, its name's place in the alphabet."""
        ranks = self._ranks
        if len(ranks) < len(self.names):
            # A copy: another thread may give a code meanwhile.
            names = self.names.copy()
            ranks = np.empty(len(names), np.int64)
            ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
            self._ranks = ranks
        return ranks


@dataclass(slots=True)
class Tables:
    """Whose codes the columns hold; code 0 is "" everywhere."""

    workers: Names = field(default_factory=lambda: Names([""]))
    trajectories: Names = field(default_factory=lambda: Names([""]))
    tools: Names = field(default_factory=lambda: Names([""]))


def ints(values: Any) -> Ints:
    """An int64 array."""
    return np.asarray(values, dtype=np.int64)


_COLUMNS: Final = ("worker", "kind", "start", "end", "trajectory", "name")


@dataclass(frozen=True, slots=True)
class Columns(Sequence[Activity]):
    """Activities as six arrays of equal length."""

    tables: Tables
    worker: Ints
    kind: Ints
    start: Ints
    end: Ints
    trajectory: Ints
    name: Ints

    @classmethod
    def of(cls, activities: Sequence[Activity], tables: Tables | None = None) -> Columns:
        """Columns as they are, or of a list; ValueError when a kind is unknown."""
        if isinstance(activities, Columns) and tables in (None, activities.tables):
            return activities
        tables = tables or Tables()
        if strange := {x.kind for x in activities} - set(KINDS):
            msg = f"no activity kind called {min(strange)!r}; choose one of {', '.join(KINDS)}"
            raise ValueError(msg)
        return cls(
            tables,
            tables.workers.many(x.worker_id for x in activities),
            ints([KIND[x.kind] for x in activities]),
            ints([x.start_ns for x in activities]),
            ints([x.end_ns for x in activities]),
            tables.trajectories.many(x.trajectory_id for x in activities),
            tables.tools.many(x.name for x in activities),
        )

    def __len__(self) -> int:
        return len(self.start)

    @overload
    def __getitem__(self, at: int) -> Activity: ...
    @overload
    def __getitem__(self, at: slice) -> Columns: ...
    def __getitem__(self, at: int | slice) -> Activity | Columns:
        if isinstance(at, slice):
            return self.where(at)
        return next(iter(self.where(slice(at, at + 1 or None))))

    def __iter__(self) -> Iterator[Activity]:
        workers, trajectories = self.tables.workers.names, self.tables.trajectories.names
        tools = self.tables.tools.names
        rows = zip(*(getattr(self, name).tolist() for name in _COLUMNS), strict=True)
        for worker, kind, start, end, trajectory, name in rows:
            whose = trajectories[trajectory]
            yield Activity(workers[worker], KINDS[kind], start, end, whose, tools[name])

    def where(self, chosen: Any) -> Columns:
        """The rows of a mask, of indices or of a slice."""
        return Columns(self.tables, *(getattr(self, name)[chosen] for name in _COLUMNS))

    def meeting(self, start_ns: int, end_ns: int) -> Columns:
        """The rows that last within [start_ns, end_ns)."""
        return self.where((self.start < end_ns) & (self.end > start_ns))

    def closed(self, at_ns: int) -> Columns:
        """What still lasts ends at that instant."""
        return replace(self, end=np.where(self.end == OPEN, at_ns, self.end))

    def named(self) -> Bools:
        """Which rows are a trajectory's own and have a length."""
        return (self.kind < LIVE) & (self.trajectory > 0) & (self.start < self.end)

    def of_trajectory(self, code: int) -> list[Activity]:
        """The activities of one trajectory that have a length."""
        return list(self.where(self.named() & (self.trajectory == code)))


def renamed(columns: Columns, tables: Tables) -> Columns:
    """The same activities by the codes of other tables."""
    own = columns.tables
    worker, trajectory, tool = (
        new.many(old.names)[code] if len(code) else code
        for old, new, code in (
            (own.workers, tables.workers, columns.worker),
            (own.trajectories, tables.trajectories, columns.trajectory),
            (own.tools, tables.tools, columns.name),
        )
    )
    times = columns.kind, columns.start, columns.end
    return Columns(tables, worker, *times, trajectory, tool)


def together(parts: Sequence[Columns]) -> Columns:
    """Columns of the same tables, one after the other."""
    joined = [np.concatenate([getattr(p, name) for p in parts]) for name in _COLUMNS]
    return Columns(parts[0].tables, *joined)
