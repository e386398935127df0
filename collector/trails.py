"""What did trajectories do when, from their steps, tool calls, moves and engine slices?

Vectorised over any set of trajectories, by the rules that facts.py tells. A trajectory's activities
follow from its own rows alone: when these change it is gathered again and no other is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from heddle.collector.activities import (
    KIND,
    NONE,
    OPEN,
    Columns,
    Ints,
    Kind,
    Tables,
    ints,
    together,
)
from heddle.collector.cells import FITS, spread
from heddle.collector.steps import Lives, Steps, codes, end_of_lives, slices_of, steps_of

_PARTS: Final[tuple[Kind, ...]] = ("held", "queued", "prefill", "decode")


class Frames(NamedTuple):
    """Rows of the named queries of some trajectories."""

    steps: pl.DataFrame
    tool_calls: pl.DataFrame
    moves: pl.DataFrame
    trajectories: pl.DataFrame
    slices: pl.DataFrame
    """trajectory_id, kind, start_ns, end_ns: stages of requests by the engines' own spans."""


@dataclass(slots=True)
class _Calls:
    """Tool calls in order of trajectory, start and name; what lasts ends at `end`."""

    whose: Ints
    tool: Ints
    start: Ints
    end: Ints


class _Stints(NamedTuple):
    """Stays of trajectories on workers, in order of trajectory and time, without holes."""

    whose: Ints
    worker: Ints
    start: Ints
    end: Ints


def trails(frames: Frames, tables: Tables, until_ns: int, *, provisional: bool) -> Columns:
    """Every activity of those trajectories; what still lasts ends at *until_ns*."""
    told = _rows(frames.trajectories, tables, "start_ns", "end_ns")
    steps = steps_of(frames.steps, tables)
    calls = _calls(frames.tool_calls, tables)
    lives = Lives.of(steps, told, len(tables.trajectories))
    steps.close(lives, until_ns)
    _close(calls, steps, lives, until_ns)
    moved = _rows(frames.moves, tables)[0]
    end_of_lives(lives, steps, calls.whose, calls.end, until_ns, provisional=provisional)
    known = np.unique(np.concatenate([told[0], steps.whose, calls.whose, moved]))
    stints = _stints(steps, lives, known)
    found = [
        _activities(tables, "live", *stints),
        *_parts(tables, steps, slices_of(frames.slices, tables, steps)),
        _holes(tables, steps),
        _tools(tables, calls, stints),
        _moves(tables, frames.moves),
    ]
    return together(found)


def _started(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.filter(pl.col("trajectory_id").is_not_null() & pl.col("start_ns").is_not_null())


def _calls(frame: pl.DataFrame, tables: Tables) -> _Calls:
    """Tool calls by trajectory and time, so that what they become lies in order."""
    frame = _started(frame)
    whose, start, end = _rows(frame, tables, "start_ns", "end_ns")
    tool = codes(frame["tool_name"], tables.tools)
    order = np.lexsort((end, tables.tools.ranks[tool], start, whose))
    return _Calls(*(column[order] for column in (whose, tool, start, end)))


def _rows(frame: pl.DataFrame, tables: Tables, *columns: str) -> tuple[Ints, ...]:
    """Trajectory codes and columns, NONE for null."""
    found = [frame[name].fill_null(NONE).to_numpy().astype(np.int64) for name in columns]
    return codes(frame["trajectory_id"], tables.trajectories), *found


def _activities(
    tables: Tables, kind: Kind, whose: Ints, worker: Ints, start: Ints, end: Ints,
    tool: Ints | None = None,
) -> Columns:  # fmt: skip
    """Those that have a length."""
    some = start < end
    whose, worker, start, end = whose[some], worker[some], start[some], end[some]
    kinds = np.full(len(start), KIND[kind])
    names = np.zeros(len(start), np.int64) if tool is None else tool[some]
    return Columns(tables, worker, kinds, start, end, whose, names)


def _close(calls: _Calls, steps: Steps, lives: Lives, until_ns: int) -> None:
    """A call without an end lasts until its trajectory's next step, else to its end."""
    lasting = np.flatnonzero(calls.end == NONE)
    if not len(lasting):
        return
    whose, at = calls.whose[lasting], calls.start[lasting]
    following = steps.after(whose, at)
    there = following < lives.past[whose]
    next_start = (
        steps.start[np.minimum(following, max(len(steps.start) - 1, 0))] if len(steps.start) else at
    )
    otherwise = np.where(lives.end[whose] == NONE, until_ns, lives.end[whose])
    calls.end[lasting] = np.where(there, next_start, otherwise)


def _stints(steps: Steps, lives: Lives, known: Ints) -> _Stints:
    """The lives cut at the steps that start on another worker; before the first step nowhere."""
    first = lives.first_start(steps, known)
    begins = np.where(lives.start[known] == NONE, first, np.minimum(first, lives.start[known]))
    before = np.concatenate([ints([0]), steps.home[:-1]])
    before[lives.first[steps.whose] == np.arange(len(steps.whose))] = 0
    moved = np.flatnonzero(steps.home != before)
    whose = np.concatenate([known, steps.whose[moved]])
    worker = np.concatenate([np.zeros(len(known), np.int64), steps.home[moved]])
    start = np.concatenate([begins, steps.start[moved]])
    order = np.lexsort((start, whose))
    whose, worker, start = whose[order], worker[order], start[order]
    end = np.concatenate([start[1:], ints([0])])
    last = np.concatenate([whose[1:] != whose[:-1], [True]])[: len(whose)]
    end = np.where(last, lives.end[whose], end[: len(whose)])
    return _Stints(whose, worker, start, end)


def _parts(tables: Tables, steps: Steps, own: tuple[Columns, Ints]) -> list[Columns]:
    """Held, queued, prefill, decode in order, unless the engine says it; opaque without timings."""
    slices, said = own
    at = steps.start
    found = [slices]
    for kind, part in zip(_PARTS, steps.parts, strict=True):
        length = np.where(part == NONE, 0, np.maximum(part, 0))
        until = np.where(length > 0, np.maximum(at, np.minimum(at + length, steps.end)), at)
        mine = (said & 1 << KIND[kind]) == 0
        found.append(
            _activities(tables, kind, steps.whose[mine], steps.home[mine], at[mine], until[mine])
        )
        at = until
    blind = (steps.parts[2] == NONE) & (steps.parts[3] == NONE)
    opaque = steps.whose[blind], steps.home[blind], at[blind], steps.end[blind]
    return [*found, _activities(tables, "opaque", *opaque)]


def _holes(tables: Tables, steps: Steps) -> Columns:
    """Where a step index is missing, its span was lost: nobody knows what happened there."""
    at = np.flatnonzero(
        steps.same & (steps.index[:-1] != NONE) & (steps.index[1:] != NONE)
        & (steps.index[1:] > steps.index[:-1] + 1)
    )  # fmt: skip
    spans = steps.whose[at], steps.home[at], steps.end[at], steps.start[at + 1]
    return _activities(tables, "opaque", *spans)


def _tools(tables: Tables, calls: _Calls, stints: _Stints) -> Columns:
    """A tool interval belongs to whichever worker the trajectory is homed on meanwhile."""
    if not len(calls.whose) or not len(stints.whose):
        return Columns.of((), tables)
    least = min(int(stints.start.min()), int(calls.start.min()))
    # What lasts ends after everything else does; a life of which nothing came begins then.
    begun = stints.start[stints.start < OPEN]
    most = max(int(begun.max(initial=least)), int(calls.start.max())) + 1
    size, count = most - least + 1, int(max(stints.whose.max(), calls.whose.max())) + 1
    # Clocks that are years apart are told by their order.
    edges = (
        None
        if size * count < FITS
        else np.unique(np.concatenate([stints.start, calls.start, calls.end]))
    )
    size = size if edges is None else len(edges) + 1

    def key(whose: Ints, at: Ints) -> Ints:
        at = np.minimum(at, most) - least if edges is None else np.searchsorted(edges, at)
        return whose * size + at

    starts = key(stints.whose, stints.start)
    floor = np.searchsorted(stints.whose, calls.whose)
    last = np.searchsorted(starts, key(calls.whose, calls.end), side="left") - 1
    first = np.searchsorted(starts, key(calls.whose, calls.start), side="right") - 1
    first = np.maximum(first, floor)
    count = np.maximum(last - first + 1, 0)
    call, stint = spread(first, count)
    start = np.maximum(calls.start[call], stints.start[stint])
    end = np.minimum(calls.end[call], stints.end[stint])
    whose, tool = calls.whose[call], calls.tool[call]
    return _activities(tables, "tool", whose, stints.worker[stint], start, end, tool)


def _moves(tables: Tables, frame: pl.DataFrame) -> Columns:
    """The exposed end of a move, on its target; what its span does not call hidden is exposed."""
    moves = _started(frame)
    whose, start, end = _rows(moves, tables, "start_ns", "end_ns")
    end = np.where(end == NONE, start, end)
    hidden, exposed = (
        moves[name].cast(pl.Float64).to_numpy() for name in ("hidden_s", "exposed_s")
    )
    rest = end - start - np.rint(np.nan_to_num(hidden) * 1e9).astype(np.int64)
    said = np.rint(np.nan_to_num(exposed) * 1e9).astype(np.int64)
    exposed_ns = np.where(np.isnan(exposed), rest, said)
    start = np.minimum(end, np.maximum(start, end - exposed_ns))
    worker = codes(moves["move_target"], tables.workers)
    return _activities(tables, "move", whose, worker, start, end)
