"""How exact and how fast is the accounting: conservation, a full pass, an update while it runs?

Conservation on seeded random fleets in exact integers; speed on 6,400 trajectories, 64 GPUs and
60,000 steps, through a store and the named queries a page asks: a full pass in CPU time of one
process (other work on the machine does not count), an update in wall time, for a page waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from heddle.app.bench.figures import Figure, Say
from heddle.app.bench.fleets import Fleet, big_fleet, random_case, stored
from heddle.collector.accounting import account
from heddle.collector.blame import blame, used
from heddle.collector.critical_path import critical_path
from heddle.collector.queries.catalog import QUERIES
from heddle.collector.queries.results import Results
from heddle.collector.spare import spare

CASES: Final = 5_000
POLLS: Final = 60
EVERY_S: Final = 3.0
"""How often a page that refreshes by itself asks, for three minutes of a running rollout."""
BEGIN: Final = 0.1
"""Polls begin at this share of the rollout: every trajectory is live then."""
PAGE: Final = ("accounts", "partition", "strips", "blame", "critical_path", "decomposition",
               "efficiency", "findings", "stragglers")  # fmt: skip


class Spent(NamedTuple):
    """Milliseconds of one update: wall and CPU to the partition, CPU to all that is explained."""

    waited_ms: float
    cpu_ms: float
    explained_ms: float


def run(*, quick: bool, say: Say) -> dict[str, Figure]:
    """The issue's numbers; --quick takes a tenth of everything."""
    share = 0.1 if quick else 1.0
    fleet = big_fleet(round(6_400 * share), 64, round(60_000 * share))
    size = f"{fleet.trajectories:,} trajectories, 64 GPUs, {fleet.steps:,} steps"
    say("conservation")
    broken, made = _conservation(round(CASES * share)), round(CASES * share)
    with TemporaryDirectory(prefix="heddle-bench-") as data:
        say(f"{size}: full pass")
        full_s, all_s, page_ms = _full(Path(data) / "full", fleet)
        say("updates while it runs")
        spent, lag_s = _updates(Path(data) / "running", fleet)
        waited_ms, cpu_ms, all_ms = zip(*spent, strict=True)
    return {
        "conservation_broken": Figure(broken, "", 0, "lower", f"of {made:,} random fleets"),
        "full_s": Figure(full_s, "s", 3, "lower", f"CPU, rows to partition and strips; {size}"),
        "explained_s": Figure(
            all_s, "s", 10, "lower", "CPU, that and blame, path, parts, findings; no issue target"
        ),
        "page_ms": Figure(page_ms, "ms", 50, "lower", "CPU, all of it again, kept result"),
        "update_ms": Figure(
            median(waited_ms),
            "ms",
            150,
            "lower",
            f"wall, to partition and strips; median of {len(spent)} updates in {POLLS} polls "
            f"{EVERY_S:g} s apart while spans come",
        ),
        "update_worst_ms": Figure(
            max(waited_ms), "ms", 300, "lower", "the costliest of them; no issue target"
        ),
        "update_cpu_ms": Figure(
            sum(cpu_ms) / len(spent),
            "ms",
            200,
            "lower",
            "CPU of all threads, mean of the same; no issue target",
        ),
        "update_explained_ms": Figure(
            sum(all_ms) / len(spent),
            "ms",
            300,
            "lower",
            "CPU, mean: that and blame, path, findings; no issue target",
        ),
        "update_lag_s": Figure(lag_s, "s", 5, "lower", "oldest answer among these polls"),
    }


def _conservation(count: int) -> int:
    """Fleets in which states, blame, use, spare time or critical path do not sum exactly."""
    return sum(not _conserves(seed) for seed in range(count))


def _conserves(seed: int) -> bool:
    window, gpus, leases, seen = random_case(seed)
    accounts = account(window, gpus, leases, seen)
    split, found = blame(accounts), spare(accounts)
    starved = accounts.gpu_ns["tail_bubble"] + accounts.gpu_ns["starved_gap"]
    return (
        sum(accounts.gpu_ns.values()) == accounts.total_gpu_ns
        and sum(split.by_worker.values()) == split.explained_ns <= accounts.idle_ns
        and sum(used(accounts).values()) == accounts.busy_ns
        and found.recoverable_ns + found.unavoidable_ns == starved
        and critical_path(window, seen).makespan_ns == accounts.wall_ns
    )


def _full(data: Path, fleet: Fleet) -> tuple[float, float, float]:
    """CPU seconds of a first partition and of a first page, milliseconds of the page again."""
    with stored(data, fleet, 1.0) as store, store.reading() as cursor:
        began = time.process_time()
        _page(cursor, PAGE[:3])
        full_s = time.process_time() - began
        _page(cursor)
        all_s = time.process_time() - began
        began = time.process_time()
        _page(cursor)
        return full_s, all_s, (time.process_time() - began) * 1e3


def _updates(data: Path, fleet: Fleet) -> tuple[list[Spent], float]:
    """What every update took while spans keep coming, and the longest lag.

    The clock that paces updates is counted, so that three minutes of polls need not pass.
    """
    step = EVERY_S / ((fleet.end_ns - fleet.start_ns) / 1e9)
    now, computed_s = [0.0], 0.0
    results = Results(lambda: now[0])
    spent: list[Spent] = []
    lags: list[float] = []
    with stored(data, fleet, BEGIN) as store:
        with store.reading() as cursor:
            _poll(results, cursor)
        for poll in range(POLLS):
            now[0] = (poll + 1) * EVERY_S
            until = BEGIN + step * (poll + 1)
            fleet.send(store, until - step, min(until, 0.99))
            before = results.computed
            with store.reading() as cursor:
                took_ms = _poll(results, cursor)
            if results.computed > before:
                spent.append(took_ms)
                computed_s = now[0]
            lags.append(now[0] - computed_s)
    return spent, max(lags)


def _poll(results: Results, cursor: Any) -> Spent:
    """Everything a page shows of a running rollout."""
    began_s, began = time.perf_counter(), time.process_time()
    found = results.of(cursor, {"run": ["bench"], "rollout": ["0"]})
    assert found is not None
    waited_s, accounted = time.perf_counter() - began_s, time.process_time()
    _ = (found.blame, found.path, found.spare, found.findings)
    return Spent(waited_s * 1e3, (accounted - began) * 1e3, (time.process_time() - began) * 1e3)


def _page(cursor: Any, names: Sequence[str] = PAGE) -> None:
    for name in names:
        QUERIES[name].answer(cursor, {"run": ["bench"], "rollout": ["0"]})
