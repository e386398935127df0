"""How does `heddle replay --policies` find its rollouts, and what does it print?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from heddle.app import recorded, show
from heddle.app.errors import fail
from heddle.app.replay import Cell, from_store, generated, play, summary, switches_of


def compare(
    policies: Sequence[str], source: Mapping[str, Any], asked: Mapping[str, Any], *, json: bool
) -> None:
    """Play every cell under every policy and print the medians, the first policy as base."""
    for policy in policies:
        switches_of(policy)
    cells = _cells(source, asked)
    rows: list[dict[str, Any]] = []
    with show.counter("paired replay", "rollouts") as done:
        for cell in cells:
            for policy in policies:
                rows.append(play(cell, policy))
                done(len(rows))
    told = summary(rows)
    if json:
        show.as_json({"summary": told, "rows": rows})
        return
    show.table(list(told[0]), [[_cell(value) for value in one.values()] for one in told])
    show.OUT.print(
        f"workloads {', '.join(dict.fromkeys(row['workload_hash'] for row in rows))}; "
        f"engines {', '.join(dict.fromkeys(row['truth_hash'] for row in rows))}"
    )


def _cells(source: Mapping[str, Any], asked: Mapping[str, Any]) -> list[Cell]:
    fleet = {name: asked[name] for name in ("gpus", "model", "error")}
    seeds = range(asked["seed"], asked["seed"] + asked["seeds"])
    specs = None
    if source["file"] is not None:
        limits = recorded.Limits(None, None, None, asked["seed"])
        specs = recorded.load(Path(source["file"]), limits).trajectories
    elif source["rollout"] is not None:
        specs = _stored(source["rollout"], asked["collector"])
    if specs is None:
        return [
            generated(source["workload"], seed=seed, groups=source["groups"], **fleet)
            for seed in seeds
        ]
    # A recorded rollout has no other epoch: what is foreseen of it is told by --error.
    fleet["error"] = 0.6 if fleet["error"] is None else fleet["error"]
    one = Cell(name="recorded", now=specs, past=specs, **fleet)
    return [replace(one, name=f"recorded/{seed}", seed=seed) for seed in seeds]


def _stored(spelled: str, collector: str | None) -> Any:
    from heddle.app.settings import load
    from heddle.collector.client import CollectorClient

    run, slash, rollout = spelled.partition("/")
    if not slash:
        fail(f"--rollout expects RUN/ROLLOUT, got {spelled!r}")
    with CollectorClient(collector or load({}).query_url) as client:
        steps = client.query("steps", run=run, rollout=rollout, limit=1_000_000)
        tools = client.query("tool_calls", run=run, rollout=rollout, limit=1_000_000)
    if steps.is_empty():
        fail(f"the store holds no steps of rollout {rollout!r} of run {run!r}")
    return from_store(steps, tools)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 10 else f"{value:,.0f}"
    return "-" if value is None else str(value)
