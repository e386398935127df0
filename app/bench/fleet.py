"""Does a fleet change its layout under load without losing anything, how soon does Ray replace what
dies, and does planning pick the layout that ends first?

Emulated engines as processes on this machine, so wall seconds are this machine's; the share of
right layouts is counted in virtual time, with the truth of the emulator and not of the planner.
"""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import orjson

from heddle.app.bench.figures import Figure, Say
from heddle.app.bench.fleet_on_ray import on_ray, stacked
from heddle.app.bench.fleet_shifts import GPUS, SHIFTS, shift
from heddle.app.compose import Stack
from heddle.app.errors import fail
from heddle.app.rollouts import Session, measure
from heddle.controller.client import ControllerClient
from heddle.controller.emulator.workload import generate
from heddle.controller.wire_fleet import FleetApplyIn, ReallocationState

SPEED: Final = 50.0
NEAR: Final = 1.03
READY_S: Final = 600.0
"""64 engines start at once, of which each imports for a second."""
LOOK_S: Final = 0.02


def run(*, quick: bool, say: Say, part: str | None = None) -> dict[str, Figure]:
    """All of the issue's numbers, or those of one part; --quick takes an eighth of the fleet and of
    the shifts, and no Ray unless it is asked for."""
    if part is not None and part not in PARTS:
        fail(f"no part {part!r} of this bench; choose one of {', '.join(PARTS)}")
    parts = [part] if part else [name for name in PARTS if not (quick and name == "ray")]
    found: dict[str, Figure] = {}
    for name in parts:
        found |= PARTS[name](quick=quick, say=say)
    return found


def _layouts(*, quick: bool, say: Say) -> dict[str, Figure]:
    gpus, groups = (8, 4) if quick else (64, 32)
    wanted = [4, 2, 2] if quick else [8] * 4 + [4] * 8
    say(f"{gpus} x degree 1 to {len(wanted)} engines with {groups * 16} live trajectories")
    return _regrouped(gpus, wanted, groups)


def _shifts(*, quick: bool, say: Say) -> dict[str, Figure]:
    say("layouts after shifts of the lengths, in virtual time")
    return _planned(6 if quick else SHIFTS)


@dataclass(eq=False)
class _Change(threading.Thread):
    """Changes the layout once the rollout is under way, and watches how many GPUs serve."""

    stack: Stack
    wanted: list[int]
    expected: int
    lowest: int = 1 << 30
    story: ReallocationState | None = None
    live: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        super().__init__(name="heddle-bench-change", daemon=True)

    def run(self) -> None:
        stack = self.stack
        with ControllerClient(stack.controller_url, token=stack.token, timeout_s=600.0) as client:
            while self.live < self.expected and not self.over.wait(LOOK_S):
                self.live = client.health().trajectories
            watch = threading.Thread(target=self._watch, daemon=True)
            watch.start()
            asked = FleetApplyIn(layout=self.wanted, who="bench", why="bench", wait=True)
            self.story = client.apply_fleet(asked)
            self.over.set()
            watch.join()

    def _watch(self) -> None:
        with ControllerClient(self.stack.controller_url, timeout_s=60.0) as client:
            while not self.over.wait(LOOK_S):
                serving = [w.degree for w in client.workers() if w.alive and not w.draining]
                self.lowest = min(self.lowest, sum(serving))


def _regrouped(gpus: int, wanted: list[int], groups: int) -> dict[str, Figure]:
    specs = generate("coding", groups=groups, seed=1)
    with stacked(gpus=gpus, speed=SPEED, ready_s=READY_S) as (stack, supervisor, _):
        with ControllerClient(stack.controller_url, token=stack.token) as client:
            client.switch(preset="verl", who="bench")
        with Session(stack, "fleet", watch=supervisor.check) as session:
            change = _Change(stack, wanted, len(specs))
            change.start()
            seen = session.play("r0", specs, lambda _: None)
            change.over.set()
            change.join()
            told = measure(session.collector, "fleet", "r0")
            steps = session.collector.query("steps", run="fleet", rollout="r0")
        logs = stack.settings.data / "engines"
        story = change.story
        if story is None or story.state != "done":
            fail(f"the layout did not change: {story.error if story else 'nobody asked'}")
        truth_ns = logged_gpu_ns(_log(logs), story)
    answered = steps.filter(steps["error_type"].is_null())
    unique = answered.select("trajectory_id", "step_index").n_unique()
    accounted_ns = told["gpu_ns"].get("reallocation", 0)
    note = f"{gpus}x1 to {'+'.join(map(str, wanted))}, {change.live} live, x{SPEED:g}"
    off = abs(accounted_ns / truth_ns - 1.0)
    return {
        "lost": Figure(len(specs) - seen.finished, "trajectories", 0, "lower", note),
        "doubled": Figure(answered.height - unique, "steps", 0, "lower", note),
        "capacity_below_floor": Figure(
            max(story.floor_gpus - change.lowest, 0), "GPUs", 0, "lower",
            f"floor {story.floor_gpus}, lowest seen {change.lowest}, {story.waves} waves",
        ),
        "accounting_off": Figure(
            off, "", 0.01, "lower",
            f"{accounted_ns / 1e9:.0f} GPU-s accounted, {truth_ns / 1e9:.0f} in engines' logs",
        ),
        "moved": Figure(story.moved, "trajectories", 0, "higher", "in their tool intervals"),
    }  # fmt: skip


def _log(folder: Path) -> dict[str, dict[str, int]]:
    """Worker -> event of its engine's launch/exit log -> when; `idle` since its last request."""
    found: dict[str, dict[str, int]] = {}
    for path in folder.glob("*.log"):
        for line in path.read_text().splitlines():
            if line.startswith('{"event"'):
                said = orjson.loads(line)
                mine = found.setdefault(said["worker"], {})
                mine.setdefault(said["event"], said["at_ns"])
                mine["idle"] = said["idle_since_ns"]
    return found


def logged_gpu_ns(log: dict[str, dict[str, int]], story: ReallocationState) -> int:
    """GPU-time between an engine's last request (it drained then) and its successor's flush, the
    last thing asked of it before it takes steps.

    Sums of degree x time: old engines give their GPUs up, new ones take as many.
    """
    drained = {p.worker: p.start_ns for p in story.phases if p.name == "drain"}
    begun = {p.worker: p.degree for p in story.phases if p.name == "launch"}
    degree = {p.worker: p.degree for p in story.phases}
    given = sum(degree[w] * max(log[w]["idle"], at) for w, at in drained.items())
    return sum(d * log[w]["flushed"] for w, d in begun.items()) - given


def _planned(shifts: int) -> dict[str, Figure]:
    # The parts before this one left threads here: a forked child would wait for their locks.
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        rows = list(pool.map(shift, range(shifts)))
    best = sum(row["picked_s"] <= row["best_s"] for row in rows) / shifts
    near = sum(row["picked_s"] <= NEAR * row["best_s"] for row in rows) / shifts
    worst = max(row["picked_s"] / row["best_s"] for row in rows)
    note = f"{shifts} seeded shifts, {GPUS} GPUs, virtual time"
    return {
        "best_layout_share": Figure(
            best, "", 0.9, "higher", f"{near:.0%} within 3 %, worst {worst:.2f}x; {note}"
        )
    }


PARTS: Final = {"layouts": _layouts, "ray": on_ray, "shifts": _shifts}
