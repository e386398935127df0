"""Which engines serve, what can they not do, and how does one change the layout?

Everything is the controller's word. A worker drains or takes steps again with a name and a reason;
a layout is planned first, shown with its cost and gain, and applied only then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl
import streamlit as st

from heddle.dashboards import cards, client, control, engines, facts, presence, scope, shell, theme
from heddle.dashboards.views import relayout

_COLUMN = st.column_config
WORKERS: Final[dict[str, Any]] = {
    "worker_id": _COLUMN.TextColumn("worker", width=55),
    "state": _COLUMN.TextColumn("state", width=60),
    "degree": _COLUMN.NumberColumn("degree", width=54),
    "trajectories": _COLUMN.NumberColumn("live", width=40, help="Trajectories it serves"),
    "engine_running": _COLUMN.NumberColumn("running", width=60),
    "queued": _COLUMN.NumberColumn("queued", width=60),
    "kv": _COLUMN.ProgressColumn("KV used", width=90, format="%.0f %%", min_value=0, max_value=100),
    "context_tokens": _COLUMN.NumberColumn("context (tokens)", width=108, format="localized"),
    "preemptions": _COLUMN.NumberColumn("preempted", width=74),
    "restarts": _COLUMN.NumberColumn("restarts", width=60),
    "where": _COLUMN.TextColumn("GPUs", width=90),
    "url": _COLUMN.TextColumn("address", width=155),
    "said": _COLUMN.TextColumn("said when it ended", width="medium"),
}
MISSING: Final[dict[str, Any]] = {
    "sentence": _COLUMN.TextColumn("cannot", width="large"),
    "workers": _COLUMN.TextColumn("workers", width="medium"),
}
CHANGES: Final[dict[str, Any]] = {
    "at": _COLUMN.TextColumn("when", width=130),
    "state": _COLUMN.TextColumn("state", width=50),
    "before": _COLUMN.TextColumn("from", width=70),
    "after": _COLUMN.TextColumn("to", width=70),
    "took_s": _COLUMN.NumberColumn("took (s)", width=62, format="%.1f"),
    "expected_s": _COLUMN.NumberColumn("expected (s)", width=90, format="%.1f"),
    "gain_s": _COLUMN.NumberColumn("gain (s)", width=60, format="%.1f"),
    "moved": _COLUMN.NumberColumn("moved", width=52),
    "lowest_gpus": _COLUMN.NumberColumn("least GPUs", width=74, help="GPUs serving at the least"),
    "longest": _COLUMN.TextColumn("longest phases", width=190),
    "who": _COLUMN.TextColumn("who", width=60),
    "because": _COLUMN.TextColumn("because", width=260),
    "error": _COLUMN.TextColumn("error", width=160),
}
SENTENCES: Final = ("because", "error")
COSTS: Final[dict[str, Any]] = {
    "method": _COLUMN.TextColumn("method"),
    "degree": _COLUMN.NumberColumn("degree"),
    "seconds": _COLUMN.NumberColumn("takes (s)", format="%.1f"),
    "measured": _COLUMN.NumberColumn("measured", help="0: the latency profile says so"),
}


def page() -> None:
    """Workers, what they miss, levers, changes of the layout."""
    shell.opened("Fleet")
    chosen = shell.quietly()
    cards.fleet_time([control.clock_speed()])
    every = presence.every(cards.REFRESH_S) if chosen is None or chosen.live else None
    now, refused = client.attempt(engines.fleet)
    if now is None:
        cards.unreachable("controller", client.places().controller, control.START)
        st.text(refused or "")
        return
    st.fragment(_now, run_every=every)()
    if now["workers"]:
        _missing(now["workers"])
        _steer(now["workers"])
    relayout.panel(now, chosen.run if chosen else None)
    _levers(now)
    _changes(now)


def _now() -> None:
    now, refused = client.attempt(engines.fleet)
    if now is None:
        st.warning(f"The controller does not answer: {cards.plain(refused)}")
        return
    _numbers(now)
    st.subheader("Workers", anchor=False)
    if not now["workers"]:
        cards.no_data("No worker has joined.", "Start one, or register it: heddle control --worker")
        return
    cards.table(listed(now["workers"]), "fleet_workers", columns=WORKERS, spare=("said",))
    if now["asleep"]:
        at = ", ".join(f"{one['url']} (TP{one['place']['degree']})" for one in now["asleep"])
        st.caption(f"Asleep: {cards.plain(at)}")


def _numbers(now: Mapping[str, Any]) -> None:
    workers = now["workers"]
    alive = sum(one["alive"] for one in workers)
    usage = [one["kv_usage"] for one in workers if one["kv_usage"] is not None]
    queued = [one["queued"] for one in workers if one["queued"] is not None]
    layout = facts.layout(",".join(map(str, now["layout"])))
    cards.numbers(
        [
            cards.Number("Layout", layout, f"Launched by: {now['launcher']}"),
            cards.Number("Serving", f"{now['serving_gpus']} / {now['gpus']} GPUs", "Of the fleet"),
            cards.Number("Alive", f"{alive} / {len(workers)}", "Workers that answer"),
            cards.Number("Live", str(sum(w["trajectories"] for w in workers)), "Trajectories"),
            cards.Number("Queued", str(sum(queued)) if queued else "–", "Requests in engines"),
            cards.Number("Fullest KV", theme.percent(max(usage, default=None)), "Of one worker"),
        ]
    )


def listed(workers: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """The workers' table: those that do not serve first."""
    ordered = sorted(
        workers, key=lambda w: (w["state"] == "serving", len(w["worker_id"]), w["worker_id"])
    )
    rows = [{**one, "kv": _percent(one["kv_usage"]), "where": _where(one)} for one in ordered]
    kept = [{name: row.get(name) for name in WORKERS} for row in rows]
    return pl.DataFrame(kept, infer_schema_length=None)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _where(worker: Mapping[str, Any]) -> str:
    place = worker["place"]
    if place is None:
        return worker["node"]
    last = place["first"] + place["degree"] - 1
    return f"node {place['node']}, GPU {place['first']}" + (
        f"-{last}" if last > place["first"] else ""
    )


def _missing(workers: Sequence[Mapping[str, Any]]) -> None:
    st.subheader("What engines cannot do", anchor=False)
    said: dict[str, list[str]] = {}
    for one in workers:
        for sentence in one["missing"]:
            said.setdefault(sentence, []).append(one["worker_id"])
    if not said:
        st.caption("Every engine can do all that Heddle asks of one.")
        return
    rows = [
        {"sentence": sentence, "workers": "all" if len(whose) == len(workers) else ", ".join(whose)}
        for sentence, whose in said.items()
    ]
    cards.table(pl.DataFrame(rows), "fleet_missing", columns=MISSING)


def _steer(workers: Sequence[Mapping[str, Any]]) -> None:
    """Drain a worker, or let it take steps again."""
    names = [one["worker_id"] for one in workers]
    with st.popover("Drain or resume a worker"):
        name = scope.choose("worker", "Worker", names, default=names[0])
        takes = next((one["takes"] for one in workers if one["worker_id"] == name), True)
        st.caption(
            "It takes no new steps then; its trajectories move while their tools run."
            if takes
            else "It drains; resumed, it takes steps again."
        )
        who, why = cards.who_and_why("drain")
        word = "Drain" if takes else "Resume"
        if st.button(word, key="fleet_drain", disabled=not (who and why), type="primary"):
            deed = engines.drain if takes else engines.resume
            cards.done(lambda: deed(name, who, why, token=cards.token("drain")), f"{word}: told.")


def _levers(now: Mapping[str, Any]) -> None:
    st.subheader("Which lever works under which trainer", anchor=False)
    trainers = list(dict.fromkeys(one["trainer"] for one in now["levers"]))
    cells: dict[str, dict[str, str]] = {}
    for one in now["levers"]:
        cells.setdefault(one["lever"], {})[one["trainer"]] = one["works"]
    rows = [{"lever": lever, **said} for lever, said in cells.items()]
    if not rows:
        st.caption("The controller names no lever.")
        return
    columns = {name: _COLUMN.TextColumn(name) for name in ("lever", *trainers)}
    cards.table(pl.DataFrame(rows, infer_schema_length=None), "fleet_levers", columns=columns)
    with st.expander("Why"):
        for one in now["levers"]:
            st.text(f"{one['lever']} under {one['trainer']}: {one['because']}")


def _changes(now: Mapping[str, Any]) -> None:
    st.subheader("Changes of the layout", anchor=False)
    if not now["reallocations"]:
        st.caption("The layout has not changed since the controller started.")
    else:
        frame = changes(now["reallocations"])
        short = {name: look for name, look in CHANGES.items() if name not in SENTENCES}
        cards.table(frame, "fleet_changes", columns=short, spare=("gain_s", "who"))
        with st.expander("Why the layout changed"):
            for row in frame.select("at", *SENTENCES).iter_rows():
                st.text(": ".join(str(word) for word in row if word))
    if now["costs"]:
        with st.expander("What a change takes"):
            cards.table(pl.DataFrame(now["costs"]), "fleet_costs", columns=COSTS)


def changes(reallocations: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """The newest first, their longest phases in words."""
    zone = scope.get("tz", "UTC")
    rows = [
        {
            **{name: one.get(name) for name in CHANGES},
            "at": theme.moment(one["start_ns"], zone),
            "before": facts.layout(",".join(map(str, one["before"]))),
            "after": facts.layout(",".join(map(str, one["after"] or one["wanted"]))),
            "took_s": (one["end_ns"] - one["start_ns"]) / 1e9 if one["end_ns"] else None,
            "longest": ", ".join(
                f"{phase} {theme.seconds(took)}" for phase, took in one["longest_s"].items()
            ),
        }
        for one in reallocations[: cards.ROWS]
    ]
    return pl.DataFrame(rows, infer_schema_length=None)
