"""How does `heddle replay --policies` find its rollouts, and what does it print?"""

from __future__ import annotations

import math
import multiprocessing
import signal
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from heddle.app import checks, recorded, show
from heddle.app.ablation import expanded, fixed_degree
from heddle.app.collecting import tokens
from heddle.app.commands.connect import collector_client
from heddle.app.errors import fail
from heddle.app.replay import Cell, from_store, generated, play, summary, switches_of
from heddle.app.replay_on_ray import spread
from heddle.app.replayed import save
from heddle.app.settings import load
from heddle.controller.emulator.workload import TrajectorySpec

INTERRUPT_S: Final = 0.5
"""Longest until Ctrl-C is seen while other processes work."""


def compare(
    policies: Sequence[str], source: Mapping[str, Any], asked: Mapping[str, Any], *, json: bool
) -> None:
    """Play every cell under every policy and print the medians, the first policy as base."""
    least = min(asked["gpus"])
    policies = expanded(policies, least)
    for policy in policies:
        switches_of(policy)
        if fixed_degree(policy) > least:
            fail(f"{policy} needs {fixed_degree(policy)} GPUs an engine; the fleet has {least}")
    asked = {**asked, "model": asked["model"] or "Qwen3-14B"}
    checks.profile("h100_sxm", asked["model"])
    fleets = asked["gpus"]
    jobs = [
        (cell, policy)
        for gpus in fleets
        for cell in _cells(source, {**asked, "gpus": gpus})
        for policy in policies
    ]
    rows = _played(jobs, asked["workers"], asked["ray"])
    if asked["save"]:
        _save(rows, source, asked)
    if len(fleets) > 1:
        rows = [{**row, "policy": f"{row['policy']} on {row['gpus']}"} for row in rows]
    told = summary(rows)
    if json:
        show.as_json({"summary": told, "rows": rows})
        return
    _print(told)
    if wrong := sum((Counter(row["errors"]) for row in rows), Counter[str]()):
        named = ", ".join(f"{name} (x{count})" for name, count in wrong.most_common(3))
        show.say(f"{wrong.total()} trajectories ended in an error, their rest unplayed: {named}")
    show.OUT.print(
        f"workloads {', '.join(dict.fromkeys(row['workload_hash'] for row in rows))}; "
        f"engines {', '.join(dict.fromkeys(row['truth_hash'] for row in rows))}"
    )


def _played(
    jobs: Sequence[tuple[Cell, str]], workers: int, ray: str | None
) -> list[dict[str, Any]]:
    """Rows in the order of the jobs: here, in processes, or as tasks of a Ray cluster."""
    rows: list[dict[str, Any]] = []
    detailed = partial(play, detail=True)
    with show.steps("paired replay", "rollouts") as done, ExitStack() as exits:
        if ray is not None:
            results = spread(jobs, ray)
        elif workers == 1:
            results = map(detailed, *zip(*jobs, strict=True))
        else:
            pool = exits.enter_context(_processes(workers))
            results = _in_order([pool.submit(detailed, *job) for job in jobs])
        for row in results:
            rows.append(row)
            done(len(rows), len(jobs))
    return rows


def _in_order(asked: Sequence[Future[dict[str, Any]]]) -> Generator[dict[str, Any], None, None]:
    """Each as soon as it and those before it are there."""
    for one in asked:
        # Where another thread takes the signal of Ctrl-C, a wait without an end sleeps on.
        while not wait([one], timeout=INTERRUPT_S).done:
            continue
        yield one.result()


@contextmanager
def _processes(count: int) -> Generator[ProcessPoolExecutor, None, None]:
    """They end at once with whoever is interrupted: what each is at may take minutes more."""
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    # Ctrl-C reaches them too: whoever started them says when they end.
    deaf = signal.SIGINT, signal.SIG_IGN
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=signal.signal, initargs=deaf)
    try:
        yield pool
    except BrokenProcessPool:
        fail("a process that compared was ended from outside; was it memory? Take fewer --workers")
    except BaseException:
        for one in set(multiprocessing.active_children()) - before:
            one.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _save(
    rows: Sequence[dict[str, Any]], source: Mapping[str, Any], asked: Mapping[str, Any]
) -> None:
    of = source["rollout"] or (source["file"].name if source["file"] else source["workload"])
    settings = load({"collector": asked["collector"], "otlp": asked["otlp"]})
    save(rows, of, settings.otlp_url, tokens(settings.collect).ingest)
    show.say(f"saved {len(rows)} replays; read them with: heddle export replays replays.csv")


def fleets_of(spelled: str | None) -> list[int]:
    """`--gpus 32,64,128`: fleets to compare."""
    try:
        fleets = [int(part) for part in (spelled or "8").split(",")]
    except ValueError:
        fleets = []
    if not fleets or min(fleets) < 1 or max(fleets) > checks.MOST_GPUS:
        known = f"whole numbers from 1 to {checks.MOST_GPUS}, as 64 or 32,64,128"
        fail(f"--gpus expects {known}; got {spelled!r}")
    return list(dict.fromkeys(fleets))


def barrier_of(spelled: str) -> dict[str, Any]:
    """`all`, `first:N` or `cutoff:SECONDS`, as fields of a cell."""
    kind, _, value = spelled.partition(":")
    try:
        if kind == "all" and not value:
            return {}
        if kind == "first" and int(value) >= 1:
            return {"first": int(value)}
        if kind == "cutoff" and 0 < float(value) < math.inf:
            return {"cutoff_s": float(value)}
    except ValueError:
        pass
    fail(f"--barrier expects all, first:N or cutoff:SECONDS; got {spelled!r}")


def _cells(source: Mapping[str, Any], asked: Mapping[str, Any]) -> list[Cell]:
    fleet = {name: asked[name] for name in ("gpus", "model", "error", "arrivals_s")}
    fleet |= barrier_of(asked["barrier"])
    seeds = range(asked["seed"], asked["seed"] + asked["seeds"])
    specs = None
    if source["file"] is not None:
        limits = recorded.Limits(None, None, None, asked["seed"])
        specs = recorded.load(Path(source["file"]), limits).trajectories
    elif source["rollout"] is not None:
        specs = stored(source["rollout"], asked["collector"])
    if specs is None:
        return [
            generated(source["workload"], seed=seed, groups=source["groups"], **fleet)
            for seed in seeds
        ]
    # A recorded rollout has no other epoch: what is foreseen of it is told by --error.
    fleet["error"] = 0.6 if fleet["error"] is None else fleet["error"]
    one = Cell(name="recorded", now=specs, past=specs, **fleet)
    return [replace(one, name=f"recorded/{seed}", seed=seed) for seed in seeds]


def stored(spelled: str, collector: str | None) -> list[TrajectorySpec]:
    """The trajectories of RUN/ROLLOUT as the store holds them."""
    run, slash, rollout = spelled.partition("/")
    if not slash:
        fail(f"--rollout expects RUN/ROLLOUT, got {spelled!r}")
    with collector_client(collector) as client:
        steps = client.query("steps", run=run, rollout=rollout, limit=1_000_000)
        tools = client.query("tool_calls", run=run, rollout=rollout, limit=1_000_000)
    if steps.is_empty():
        fail(f"the store holds no steps of rollout {rollout!r} of run {run!r}")
    specs = from_store(steps, tools)
    if not specs:
        fail(f"no step of rollout {rollout!r} of run {run!r} has output: nothing to play")
    if silent := steps.height - sum(len(one.steps) for one in specs):
        show.say(f"{silent} of {steps.height} steps have no output and are left out")
    return specs


SOON: Final = {
    "policy": "policy",
    "makespan_s": "makespan s",
    "speed_up": "speed-up",
    "least": "least",
    "most": "most",
    "of_bound": "of bound",
    "off_plan": "off plan",
    "tail_s": "tail s",
}
COST: Final = {
    "policy": "policy",
    "idle_gpu_s": "idle GPU-s",
    "held_s": "held s",
    "moves": "moves",
    "reprefilled_tokens": "prefilled again",
    "decode_slow_down": "decode slowed",
}
CUT: Final = {
    "policy": "policy",
    "cut": "cut off",
    "carried_tokens": "tokens carried over",
    "stale_share": "share of all tokens",
}


def _print(told: Sequence[Mapping[str, Any]]) -> None:
    """When each ended, what it took, and whom a barrier cut: side by side they fit no terminal."""
    titles = f"Medians of {told[0]['cells']} rollouts", "What it took", "Whom the barrier cut off"
    for title, columns in zip(titles, (SOON, COST, CUT), strict=True):
        if columns is not CUT or any(one["cut"] for one in told):
            rows = [[_cell(one[name]) for name in columns] for one in told]
            show.table(list(columns.values()), rows, title=title)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 10 else f"{value:,.0f}"
    return "-" if value is None else str(value)
