"""How does a terminal show where a rollout's GPU time went?

Asks the collector's named queries and prints; it computes shares of what it was told, nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
from rich.markup import escape

from heddle.app import show
from heddle.app.errors import fail
from heddle.collector.client import CollectorClient
from heddle.collector.decompose import PARTS, REWRITTEN
from heddle.collector.states import STATES, is_told

BAR: Final = 40
_STYLES: Final = {
    "busy_mixed": "blue", "busy_prefill": "cyan", "busy_decode": "blue", "tool_wait": "yellow",
    "queued": "red", "tail_bubble": "bright_black", "starved_gap": "bright_black",
    "migration": "magenta", "reallocation": "magenta", "weight_sync": "magenta", "down": "red",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the collector said of one rollout, query by query."""

    rollout: dict[str, Any]
    accounts: dict[str, Any]
    frames: dict[str, pl.DataFrame]
    """partition, blame (by_trajectory, by_tool ...), critical_path, decomposition, findings ..."""


def newest(client: CollectorClient, run: str | None, rollout: str | None) -> dict[str, Any]:
    """The latest rollout that fits, or a sentence saying that there is none."""
    rows = client.query("rollouts", run=run, rollout=rollout, limit=1)
    if rows.is_empty():
        asked = [f"--{k} {v}" for k, v in (("run", run), ("rollout", rollout)) if v]
        runs = client.query("runs")["run_id"].to_list()
        known = ", ".join(runs[:5]) or "none"
        nameless = rollout is None and run in runs
        why = ": no step of it named one with X-Heddle-Rollout-Id" if nameless else ""
        fail(
            f"the collector at {client.url} has no rollout for {' '.join(asked) or 'any run'}{why}"
            f"; runs it knows: {known}"
        )
    return rows.row(0, named=True)


def ask(
    client: CollectorClient, row: dict[str, Any], *, laws: Sequence[str], price: float
) -> Diagnosis:
    """Every query `heddle diagnose` shows."""
    one: dict[str, Any] = {"run": row["run_id"], "rollout": row["rollout_id"]}
    blame = {
        f"blame_by_{by}": client.query("blame", **one, by=by)
        for by in ("trajectory", "tool", "group", "worker", "state")
    }
    frames = {
        "partition": client.query("partition", **one),
        **blame,
        "critical_path": client.query("critical_path", **one),
        "decomposition": client.query("decomposition", **one, by="rollout", law=list(laws)),
        "trajectories": client.query("decomposition", **one, law=list(laws)),
        "efficiency": client.query("efficiency", **one),
        "cost": client.query("cost", **one, price=price),
        "cost_by_group": client.query("cost", **one, price=price, by="group"),
        "stragglers": client.query("stragglers", **one),
        "hot_spots": client.query("hot_spots", **one),
        "gather": client.query("gather", **one),
        "trainer": client.query("trainer", **one),
        "device": client.query("device", **one),
        "refined": client.query("partition", **one, source="counters"),
        "tail": client.query("tail", **one),
        "tail_sources": client.query("tail_sources", **one),
        "counters": client.query("counters", **one),
        "findings": client.query("findings", **one),
    }
    accounts = client.query("accounts", **one)
    if accounts.is_empty():
        fail(f"rollout {row['rollout_id']!r} of run {row['run_id']!r} has nothing to account for")
    return Diagnosis(row, accounts.row(0, named=True), frames)


def document(found: Diagnosis) -> dict[str, Any]:
    """One JSON document: rows as the queries gave them."""
    told = {name: frame.to_dicts() for name, frame in found.frames.items()}
    return {"rollout": found.rollout, "accounts": found.accounts, **told}


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table under a title that may be wider than it."""
    show.OUT.print(f"\n[bold]{title}[/bold]", highlight=False)
    show.table(headings, rows)


def print_all(found: Diagnosis, top: int) -> None:
    """The whole page; findings first, since they say what to do."""
    _head(found)
    _findings(found)
    _partition(found)
    _measured(found)
    _blame(found, top)
    _path(found.frames["critical_path"], top)
    _parts(found.frames["decomposition"])
    _tail(found)
    _gathered(found)
    _cost(found.frames["cost"], top)


def _head(found: Diagnosis) -> None:
    a, row = found.accounts, found.rollout
    name = escape(show.plain(f"{row['run_id']} / {row['rollout_id']}"))
    state = "still running, provisional" if a["provisional"] else "finished"
    show.OUT.print(
        f"[bold]{name}[/bold]  {state}: {a['gpus']} GPUs x "
        f"{a['wall_ns'] / 1e9:,.1f} s = {a['total_gpu_ns'] / 1e9:,.0f} GPU-s, "
        f"{row['trajectories']} trajectories, {row['steps']} steps; from {a['source']}"
    )
    if not a["gpus"]:
        show.OUT.print(
            "[yellow]no GPUs are known[/yellow]: no span says of how many a worker is made "
            "(heddle.degree of steps, or heddle.worker spans), so there is no GPU time to account "
            "for and most rules cannot judge; trajectories' own times stand"
        )


def _states(found: Diagnosis) -> dict[str, int]:
    """State to GPU-ns."""
    rows = found.frames["partition"].group_by("state").agg(pl.col("gpu_ns").sum())
    return dict(rows.iter_rows())


def _findings(found: Diagnosis) -> None:
    rows = found.frames["findings"]
    if rows.is_empty():
        said = "none. Every rule is below its threshold."
        if not is_told(_states(found)):
            said = "none, but nobody told what any GPU did: most rules cannot judge."
        show.OUT.print(f"\n[bold]Findings[/bold]: {said}")
        return
    show.OUT.print("\n[bold]Findings[/bold]")
    for row in rows.iter_rows(named=True):
        colour = "red" if row["severity"] == "high" else "yellow"
        show.OUT.print(f"[{colour}]{row['severity']}[/{colour}] {row['rule']}: ", end="")
        show.OUT.print(show.plain(row["title"]), markup=False)
        show.OUT.print(f"     knob: {row['knob']}", markup=False)
        show.OUT.print(f"     evidence: {row['evidence']}", markup=False, soft_wrap=True)


def _partition(found: Diagnosis) -> None:
    amounts = _states(found)
    total = found.accounts["total_gpu_ns"] or 1
    show.OUT.print("\n[bold]Where GPU time went[/bold]")
    for state in STATES:
        if share := amounts.get(state, 0) / total:
            style = _STYLES.get(state, "white")
            bar = "█" * max(round(share * BAR), 1)
            seconds = amounts[state] / 1e9
            show.OUT.print(f"{state:<13}{share:>7.1%}{seconds:>12,.1f} GPU-s  [{style}]{bar}[/]")
    told = found.frames["efficiency"].row(0, named=True)
    if not is_told(amounts):
        return
    busy = told["busy_gpu_ns"]
    full = f"{told['effective_gpu_ns'] / busy:.0%} full" if busy else "never seen"
    show.OUT.print(
        f"busy engines were {full} (batch of "
        f"{told['saturated']}); of starving GPU time {told['recoverable_gpu_ns'] / 1e9:,.1f} GPU-s "
        f"were recoverable, {told['unavoidable_gpu_ns'] / 1e9:,.1f} unavoidable"
    )


def _measured(found: Diagnosis) -> None:
    """What engines and devices count themselves, where they do."""
    counted = found.frames["counters"].filter(pl.col("forward_ns").is_not_null())
    if not counted.is_empty():
        over = found.frames["refined"].filter(pl.col("state") == "host_overhead")
        over_ns = int(over["gpu_ns"].sum())
        forward, there = (int(counted[name].sum()) for name in ("forward_ns", "residence_ns"))
        show.OUT.print(
            f"by the engines' own counters a forward ran in {forward / 1e9:,.1f} s of the "
            f"{there / 1e9:,.1f} s in which spans saw a request: {over_ns / 1e9:,.1f} GPU-s of the "
            f"busy time are host overhead"
        )
    else:
        show.OUT.print(
            "busy means that a request was in the engine, an upper bound: no engine counted its "
            "forward execution"
        )
    devices = found.frames["device"].drop_nulls("sm_active")
    if not devices.is_empty():
        show.OUT.print(
            f"by DCGM {devices['sm_active'].mean():.0%} of SMs had work on {devices.height} GPUs, "
            f"where spans saw {devices['busy_share'].mean():.0%} busy"
        )


def _gathered(found: Diagnosis) -> None:
    """What the trainer waited for, and rollout's share of its step."""
    if found.frames["gather"].is_empty():
        return
    row = found.frames["gather"].row(0, named=True)
    if row["last_trajectory"]:
        share = f" ({row['wait_share']:.0%} of their time)" if row["wait_share"] else ""
        show.OUT.print(
            f"everyone waited {row['waited_s']:,.1f} s for {row['last_trajectory']} after half had "
            f"finished, {row['trajectory_wait_s']:,.0f} trajectory-seconds in all{share}; "
            f"{row['truncated_share']:.0%} were truncated",
            markup=False,
        )
    if row["rollout_share"] is not None:
        phases = ", ".join(
            f"{phase} {share:.0%}"
            for phase, share in found.frames["trainer"].select("phase", "share").iter_rows()
        )
        source = "by its own phases" if row["step_source"] == "trainer" else "to the next rollout"
        show.OUT.print(
            f"rollout was {row['rollout_share']:.0%} of the trainer's step of "
            f"{row['step_s']:,.1f} s ({source}){': ' if phases else ''}{phases}",
            markup=False,
        )


def _blame(found: Diagnosis, top: int) -> None:
    for by in ("trajectory", "tool", "worker"):
        rows = found.frames[f"blame_by_{by}"]
        if rows.is_empty():
            continue
        shown = [
            [row["key"] or "(nobody)", f"{row['gpu_ns'] / 1e9:,.1f}", f"{row['share']:.1%}"]
            for row in rows.head(top).iter_rows(named=True)
        ]
        more = f" ({top} of {rows.height})" if rows.height > top else ""
        _table(f"Idle GPU time by {by}{more}", [by, "GPU-s", "share"], shown)


def _path(rows: pl.DataFrame, top: int) -> None:
    if rows.is_empty():
        return
    length = (pl.col("end_ns") - pl.col("start_ns")).alias("ns")
    total = int(rows.select(length.sum()).item())
    spent = rows.group_by("doing").agg(length.sum()).sort("ns", descending=True)
    told = ", ".join(f"{doing} {ns / 1e9:,.1f} s" for doing, ns in spent.iter_rows())
    last = rows["trajectory_id"][0] or "no trajectory"
    show.OUT.print(f"\n[bold]Critical path[/bold] {total / 1e9:,.1f} s, trajectory ", end="")
    show.OUT.print(f"{show.plain(last)}: {told}", markup=False)
    longest = rows.with_columns(length).sort("ns", descending=True).head(top).sort("start_ns")
    begin = int(rows["start_ns"].to_list()[0])
    shown = [
        [
            row["doing"] + (f" {row['tool_name']}" if row["tool_name"] else ""),
            row["worker_id"] or "-",
            f"{(row['start_ns'] - begin) / 1e9:,.1f}",
            f"{row['ns'] / 1e9:,.1f}",
        ]
        for row in longest.iter_rows(named=True)
    ]
    show.table(["longest pieces", "worker", "at s", "s"], shown)


def _parts(rows: pl.DataFrame) -> None:
    if rows.is_empty() or not rows["duration_ns"][0]:
        return
    row = rows.row(0, named=True)
    told = sorted(((row[part] or 0, part.removesuffix("_ns")) for part in PARTS), reverse=True)
    shown = [
        [name, f"{ns / 1e9:,.1f}", f"{ns / row['duration_ns']:.1%}"] for ns, name in told if ns
    ]
    title = f"Time of {row['trajectories']} trajectories, {row['duration_ns'] / 1e9:,.1f} s in all"
    _table(title, ["part", "s", "share"], shown)
    if again := row[REWRITTEN]:
        show.OUT.print(
            f"of prefill {again / 1e9:,.1f} s went to tokens that agents had rewritten or that "
            f"were lost too: recompute is {row['recompute_ns'] / 1e9:,.1f} to "
            f"{(row['recompute_ns'] + again) / 1e9:,.1f} s"
        )


def _tail(found: Diagnosis) -> None:
    shown = [
        [row["metric"], *(f"{row[q]:,.1f}" for q in ("p50", "p90", "p99", "max")),
         f"{row['max_over_median']:,.1f}" if row["max_over_median"] else "-"]
        for row in found.frames["tail"].iter_rows(named=True)
    ]  # fmt: skip
    if not shown:
        return
    _table("Long tail", ["metric", "p50", "p90", "p99", "max", "max/median"], shown)
    sources = found.frames["tail_sources"].select("source", "share").iter_rows()
    told = ", ".join(f"{source} {share:.0%}" for source, share in sources)
    if told:
        show.OUT.print(f"the slowest tenth is slower by: {told}", markup=False)


def _cost(rows: pl.DataFrame, top: int) -> None:
    shown = [
        [
            row["trajectory_id"],
            f"{row['used_gpu_ns'] / 1e9:,.1f}",
            f"{row['caused_gpu_ns'] / 1e9:,.1f}",
            f"{row['price']:,.4f}",
        ]
        for row in rows.head(top).iter_rows(named=True)
    ]
    if shown:
        heads = ["costliest trajectories", "used GPU-s", "caused GPU-s", "price"]
        _table(f"Cost, in all {rows['price'].sum():,.2f}", heads, shown)
