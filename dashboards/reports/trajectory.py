"""What does one trajectory's report say? Gathered once for the page, the JSON and the HTML.

Integers of nanoseconds stay integers. The only thing asked of *client* is named queries, so that
the command line hands in a CollectorClient and the pages their cached access.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import polars as pl

from heddle.collector.errors import CollectorError
from heddle.dashboards.figures.waterfall import Piece, parts, pieces

FORMAT: Final = 1
"""Of the JSON; a reader of another number should look before it parses."""


class Asks(Protocol):
    """Named queries in, frames out: CollectorClient, or the pages' client module."""

    def query(self, name: str, **filters: Any) -> pl.DataFrame: ...


class NoSuchTrajectory(CollectorError):
    """The collector knows no such trajectory of that run."""

    def __init__(self, run: str, trajectory: str) -> None:
        super().__init__(
            f"run {run!r} has no trajectory {trajectory!r} in this collector; "
            "check the run, or open the long tail page to see which there are"
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about the trajectory, when (since its start), and the reason given."""

    at_ns: int
    since_ns: int
    what: str
    because: str


@dataclass(frozen=True, slots=True)
class Report:
    """One trajectory as the collector knows it now."""

    run: str
    trajectory: str
    summary: dict[str, Any]
    steps: pl.DataFrame
    tools: pl.DataFrame
    moves: pl.DataFrame
    pieces: list[Piece]
    decisions: list[Decision]
    clock_speed: float | None = None
    """Of the fleet it ran on; other than 1, its times are fleet time."""

    @property
    def parts_ns(self) -> dict[str, int]:
        """Phase to nanoseconds of its duration, to which they sum; each instant counts once."""
        start_ns = self.summary["start_ns"]
        if start_ns is None:
            start_ns = min((piece.start_ns for piece in self.pieces), default=0)
        duration_s = self.summary["duration_s"]
        if duration_s is None:
            return parts(self.pieces, start_ns, max([start_ns, *(p.end_ns for p in self.pieces)]))
        return parts(self.pieces, start_ns, start_ns + round(duration_s * 1e9))

    @property
    def errors(self) -> list[tuple[int, str]]:
        """When a step or tool call of it failed, and with what; by time."""
        found = [
            (row["end_ns"] or row["start_ns"], f"{what(row)}: {row['error_type']}")
            for frame, what in (
                (self.steps, lambda row: f"step {row['step_index']}"),
                (self.tools, lambda row: str(row["tool_name"] or "tool")),
            )
            for row in frame.filter(pl.col("error_type").is_not_null()).iter_rows(named=True)
        ]
        return sorted(found)

    @property
    def cached_share(self) -> float | None:
        """Of the prompts of steps that told how much was cached; None where none did."""
        asked, hits = self.summary["looked_up_tokens"], self.summary["cached_tokens"]
        return hits / asked if asked and hits is not None else None

    @property
    def file_stem(self) -> str:
        """A file name that no id can escape from."""
        return "heddle-" + re.sub(r"[^A-Za-z0-9._-]+", "_", f"{self.run}-{self.trajectory}")[:120]

    @property
    def facts(self) -> dict[str, Any]:
        """What the JSON says, nanoseconds as integers."""
        return {
            "format": FORMAT,
            "run": self.run,
            "trajectory": self.trajectory,
            "clock_speed": self.clock_speed,
            "summary": self.summary,
            "parts_ns": self.parts_ns,
            "steps": self.steps.to_dicts(),
            "tool_calls": self.tools.to_dicts(),
            "moves": self.moves.to_dicts(),
            "decisions": [
                {"at_ns": one.at_ns, "what": one.what, "because": one.because}
                for one in self.decisions
            ],
        }

    def to_json(self) -> str:
        """One document."""
        return json.dumps(self.facts, indent=2, ensure_ascii=False, allow_nan=False)

    def to_html(self) -> str:
        """One self-contained page: no network, no script, printable."""
        from heddle.dashboards.reports.page import render

        # pyright reads this module under two names, once through typings/.
        return render(cast("Any", self))


def trajectory_report(client: Asks, run: str, trajectory: str) -> Report:
    """Ask the collector for everything the report says; NoSuchTrajectory when there is nothing."""
    found = client.query("trajectories", run=run, trajectory=trajectory)
    if found.is_empty():
        raise NoSuchTrajectory(run, trajectory)
    return next(reports_of(client, run, found))


def reports_of(client: Asks, run: str, trajectories: pl.DataFrame) -> Iterator[Report]:
    """One report a row of the `trajectories` query, all of one run, in that order.

    Three questions for all of them, whatever their number: callers hand over a page at a time.
    """
    names = tuple(trajectories["trajectory_id"].unique(maintain_order=True))
    whose = names[0] if len(names) == 1 else names
    parts = [
        client.query(name, run=run, trajectory=whose).sort("start_ns")
        for name in ("steps", "tool_calls", "moves")
    ]
    cut = [frame.partition_by("trajectory_id", as_dict=True) for frame in parts]
    speeds: dict[str | None, float | None] = {}
    for row in trajectories.iter_rows(named=True):
        rollout = row["rollout_id"]
        if rollout not in speeds:
            speeds[rollout] = _clock_speed(client, run, rollout)
        key = (row["trajectory_id"],)
        mine = [found.get(key, frame.clear()) for found, frame in zip(cut, parts, strict=True)]
        yield _report(run, row, mine, speeds[rollout])


def _report(
    run: str, summary: dict[str, Any], frames: list[pl.DataFrame], speed: float | None
) -> Report:
    steps, tools, moves = frames
    cut = pieces(steps, tools, moves, now_ns=_now_ns(summary, steps, tools))
    decided = _decisions(summary["start_ns"], steps, moves)
    name = str(summary["trajectory_id"])
    return Report(run, name, summary, steps, tools, moves, cut, decided, speed)


def _clock_speed(client: Asks, run: str, rollout: str | None) -> float | None:
    if rollout is None:  # an agent that names none has none
        return None
    found = client.query("rollouts", run=run).filter(pl.col("rollout_id") == rollout)
    return None if found.is_empty() else found["clock_speed"][0]


def _now_ns(summary: dict[str, Any], *frames: pl.DataFrame) -> int:
    """The latest instant anything is known of it: where a running piece is drawn to."""
    latest = [summary["start_ns"] or 0, summary["end_ns"] or 0]
    latest.append((summary["start_ns"] or 0) + round((summary["duration_s"] or 0) * 1e9))
    for frame in frames:
        latest += [frame["start_ns"].max() or 0, frame["end_ns"].max() or 0]
    return max(int(one) for one in latest)


def _decisions(start_ns: int | None, steps: pl.DataFrame, moves: pl.DataFrame) -> list[Decision]:
    found = [_placed(row) for row in steps.iter_rows(named=True) if row["because"]]
    found += [_moved(row) for row in moves.iter_rows(named=True)]
    found.sort()
    first = start_ns if start_ns is not None else (found[0][0] if found else 0)
    return [Decision(at, at - first, what, because) for at, what, because in found]


def _placed(row: dict[str, Any]) -> tuple[int, str, str]:
    rank = "" if row["order_rank"] is None else f", rank {row['order_rank']}"
    what = f"step {row['step_index']} on {row['worker_id'] or 'no worker yet'}{rank}"
    return row["start_ns"], what, row["because"]


def _moved(row: dict[str, Any]) -> tuple[int, str, str]:
    what = f"move {row['move_source']} to {row['move_target']} ({row['move_method'] or '?'})"
    return row["start_ns"], what, row["because"] or ""
