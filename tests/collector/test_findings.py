"""Does each planted cause bring its own finding and no other, and a healthy rollout none?"""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from heddle.collector import records
from heddle.collector.accounting import account
from heddle.collector.activities import Activity
from heddle.collector.blame import blame
from heddle.collector.counters import counted
from heddle.collector.decompose import decompose
from heddle.collector.facts import gather
from heddle.collector.findings.case import Case
from heddle.collector.findings.rules import RULES, SILENCES, diagnose
from heddle.collector.findings.signals import signals
from heddle.collector.spare import spare
from heddle.collector.sums import Law

Row = dict[str, Any]


def frame(query: str, rows: list[Row]) -> pl.DataFrame:
    schema = records.schema(query)
    return pl.DataFrame([{k: row.get(k) for k in schema} for row in rows], schema=schema)


def step(t: str, w: int, start: int, *parts: int | None, index: int = 0) -> Row:
    """A step of trajectory *t* on worker w{w}: held, queue, prefill, decode."""
    names = ("held_ns", "queue_ns", "prefill_ns", "decode_ns")
    row: Row = {"trajectory_id": t, "group_id": "g", "worker_id": f"w{w}", "degree": 1}
    row |= {"step_index": index, "start_ns": start, "end_ns": start + sum(p or 0 for p in parts)}
    return row | {"output_tokens": 10, **dict(zip(names, parts, strict=True))}


def case(
    steps: list[Row], tools: list[Row] | None = None, *, fleet: list[Activity] | None = None,
    provisional: bool = False, unit: int = 1, counters: list[Row] | None = None,
    outcomes: dict[str, str] | None = None,
) -> Case:  # fmt: skip
    """Four workers over [0, 1000) units of time."""
    owners = {row["trajectory_id"] for row in steps}
    workers = [{"worker_id": f"w{w}", "degree": 1, "start_ns": 0, "end_ns": 1000} for w in range(4)]
    for row in (*steps, *(tools or []), *workers):
        row |= {k: v * unit for k, v in row.items() if k.endswith("_ns") and v is not None}
    frames = {
        "steps": frame("steps", steps),
        "tool_calls": frame("tool_calls", tools or []),
        "moves": frame("moves", []),
        "workers": frame("workers", workers),
        "trajectories": frame(
            "trajectories",
            [
                {"trajectory_id": t, "group_id": "g", "outcome": (outcomes or {}).get(t)}
                for t in sorted(owners)
            ],
        ),
    }
    rollout = {"start_ns": 0, "end_ns": None if provisional else 1000 * unit, "gpus": 4}
    found = gather(rollout, **frames, now_ns=1000 * unit, fleet=fleet or [])  # pyright: ignore[reportArgumentType]
    accounts = account(found.window, found.gpus, found.leases, found.activities)
    split = blame(accounts, found.groups)
    parts = decompose(found, frames["steps"], {1: Law(20.0)})
    rows = [
        {"op": "heddle.weight_sync", "start_ns": x.start_ns, "end_ns": x.end_ns, "waited_for": None}
        for x in dict.fromkeys(x._replace(worker_id="") for x in fleet or [])
        if x.kind == "weight_sync"
    ]
    seen = signals(
        found,
        steps=frames["steps"],
        tool_calls=frames["tool_calls"],
        fleet=pl.DataFrame(rows) if rows else None,
        counted=counted(accounts, polls(counters or [])),
        trajectories=frames["trajectories"],
    )
    return Case(accounts, split, parts, provisional, seen, spare(accounts))


def polls(rows: list[Row]) -> pl.DataFrame:
    kinds = {"worker_id": pl.String, "at_ns": pl.Int64, "ok": pl.Boolean}
    numbers = ("forward_s", "idle_s", "retracted", "running", "queue", "kv_usage")
    schema = kinds | dict.fromkeys(numbers, pl.Float64)
    return pl.DataFrame([{k: row.get(k) for k in schema} for row in rows], schema=schema)


def healthy() -> list[Row]:
    """Four trajectories a worker, all decode; worker k ends at 1000 - 40 k."""
    return [
        step(f"t{w}{k}", w, 0, 5, 5, 20, 970 - 40 * w - 10 * k) for w in range(4) for k in range(4)
    ]


def tool_heavy() -> Case:
    steps = [step(f"t{w}", w, 0, 0, 0, 10, 290) for w in range(4)]
    steps += [step(f"t{w}", w, 700, 0, 0, 10, 290, index=1) for w in range(4)]
    names = ("bash", "bash", "bash", "search")
    tools = [
        {"trajectory_id": f"t{w}", "tool_name": name, "start_ns": 300, "end_ns": 700}
        for w, name in enumerate(names)
    ]
    return case(steps, tools)


def crowded() -> Case:
    return case([step(f"t{k}", 0, 0, 0, 300, 50, 600) for k in range(12)])


def long_decode() -> Case:
    short = [step(f"t{w}{k}", w, 0, 0, 0, 10, 390) for w in range(4) for k in range(3)]
    return case([*short, step("long", 0, 0, 0, 0, 10, 990)])


def long_tool() -> Case:
    short = [step(f"t{w}{k}", w, 0, 0, 0, 10, 390) for w in range(4) for k in range(3)]
    tools = [{"trajectory_id": "long", "tool_name": "bash", "start_ns": 300, "end_ns": 1000}]
    return case([*short, step("long", 0, 0, 0, 0, 10, 290)], tools)


def queueing() -> Case:
    return case([step(f"t{w}{k}", w, 0, 0, 240 * k, 5, 235) for w in range(4) for k in range(4)])


def holding() -> Case:
    return case([step(f"t{w}{k}", w, 0, 240 * k, 0, 5, 235) for w in range(4) for k in range(4)])


def unseen() -> Case:
    return case([*healthy()[:12], *(step(f"x{k}", 3, 0, None, None, None, None) | {
        "end_ns": 1000} for k in range(2))])  # fmt: skip


def one_slow() -> Case:
    steps = [step(f"t{w}{k}", w, 0, 0, 0, 10, 390) for w in range(3) for k in range(3)]
    steps += [step(f"s{k}", 3, 0, 0, 0, 10, 980) for k in range(3)]
    return case([row | {"output_tokens": 20} for row in steps])


def tiny_kv() -> Case:
    return case([row | {"retractions": 2} for row in healthy()])


def lost_cache() -> Case:
    steps = []
    for w in range(4):
        for k in range(4):
            first = step(f"t{w}{k}", w, 0, 0, 0, 20, 400)
            second = step(f"t{w}{k}", (w + 1) % 4, 440, 0, 0, 200, 300, index=1)
            steps += [first | {"input_tokens": 500, "cached_tokens": 0},
                      second | {"input_tokens": 600, "cached_tokens": 0}]  # fmt: skip
    return case(steps)


def host_slow() -> Case:
    counters = [
        {"worker_id": "w1", "at_ns": at * 10**9, "ok": True, "forward_s": at * 0.4}
        for at in (0, 400, 900)
    ]
    return case(healthy(), unit=10**9, counters=counters)


def serial() -> Case:
    return case([step(f"t{k}", k % 4, 50 * k, 0, 0, 5, 45) for k in range(20)])


def sticky() -> Case:
    steps = [step(f"t{w}{k}", w, 0, 0, 0, 10, 420) for w in range(4) for k in range(4)]
    steps += [
        step(f"t{w}{k}", w, 500, 0, 0, 10, 480, index=1) | {"output_tokens": 14}
        for w in (0, 1)
        for k in range(4)
    ]
    return case(steps)


def holes() -> Case:
    steps = healthy()
    return case([*steps, step("t00", 0, 980, 0, 0, 5, 10, index=3)])


def proxy_stall() -> Case:
    steps = [step(f"t{w}", w, 0, 0, 0, 10, 290) for w in range(4)]
    return case([*steps, *(step(f"t{w}", w, 600, 0, 0, 10, 380, index=1) for w in range(4))])


def slow_client() -> Case:
    """Somebody always decodes, and each trajectory is 100 of 250 in its agent between two steps."""
    return case(
        [
            step(f"t{w}{k}", w, 62 * k + 250 * i, 0, 0, 10, 140, index=i)
            for w in range(4)
            for k in range(4)
            for i in range(4 if k == 0 else 3)
        ]
    )


def tool_loop() -> Case:
    tools = [
        {"trajectory_id": "t00", "tool_name": "python", "start_ns": 100 + k, "end_ns": 101 + k,
         "error_type": "ValidationError"} for k in range(9)
    ]  # fmt: skip
    return case(healthy(), tools)


def late_start() -> Case:
    return case([step(f"t{w}{k}", w, 400, 0, 0, 10, 580) for w in range(4) for k in range(4)])


PLANTED = {
    "slow-engine": one_slow,
    "kv-full": tiny_kv,
    "cache-lost": lost_cache,
    "host-bound": host_slow,
    "one-at-a-time": serial,
    "sticky-imbalance": sticky,
    "dropped-spans": holes,
    "clients-wait": proxy_stall,
    "client-bound": slow_client,
    "invalid-tool-loop": tool_loop,
    "slow-start": late_start,
    "sync-blocked": lambda: case(
        healthy(), fleet=[Activity(f"w{w}", "weight_sync", 700, 800) for w in range(4)]
    ),
    "gather-timeout": lambda: case(healthy(), unit=20 * 10**9),
    "tool-bound": tool_heavy,
    "crowded-worker": crowded,
    "degree-too-low": long_decode,
    "one-straggler": long_tool,
    "waiting-for-service": queueing,
    "dead-engine": lambda: case(healthy(), fleet=[Activity("w2", "down", 200, 900)]),
    "weight-sync": lambda: case(
        [row | {k: row[k] + 30 for k in ("start_ns", "end_ns")} for row in healthy()],
        fleet=[Activity(f"w{w}", "weight_sync", 0, 300) for w in range(4)],
    ),
    "telemetry-gaps": unseen,
    "refused-steps": lambda: case(
        [*healthy(), step("t00", 0, 985, 0, 0, 0, 0, index=1) | {"error_type": "http_400"}]
    ),
    "group-waste": lambda: case(healthy(), outcomes={"t00": "aborted", "t01": "finished"}),
}


@pytest.mark.parametrize("rule", PLANTED)
def test_a_planted_cause_is_found_and_nothing_else(rule: str) -> None:
    assert [finding.rule for finding in diagnose(PLANTED[rule]())] == [rule]


def test_every_rule_has_a_planted_cause() -> None:
    assert set(PLANTED) == set(RULES)


def test_a_healthy_rollout_and_an_empty_one_have_no_findings() -> None:
    assert diagnose(case(healthy())) == []
    assert diagnose(case([])) == []


def test_causes_silence_only_rules_there_are() -> None:
    assert set(SILENCES) | {name for names in SILENCES.values() for name in names} <= set(RULES)


def test_a_finding_says_its_numbers_its_evidence_and_its_knob() -> None:
    (found,) = diagnose(tool_heavy())
    assert found.title == "GPUs waited for tools 40% of the time, 75% of it for 'bash'"
    assert (found.evidence, found.severity) == ("tool_calls", "high")
    assert "tool concurrency" in found.knob
    (found,) = diagnose(crowded())
    assert found.title.startswith("worker w0 was busy 65% of the time and the other 3 0% on avera")
    (found,) = diagnose(PLANTED["dead-engine"]())
    assert found.evidence == "partition?worker=w2&state=down"


def test_the_knob_follows_whether_the_controller_or_the_engine_made_them_wait() -> None:
    assert "max_running_requests" in diagnose(queueing())[0].knob
    assert "admission" in diagnose(holding())[0].knob


def test_the_cause_of_a_straggler_decides_the_knob() -> None:
    (found,) = diagnose(long_tool())
    assert "it spent 70% of its time in tool" in found.title
    assert "timeout" in found.knob


def test_the_unknown_edge_of_a_running_rollout_is_no_finding() -> None:
    rows = [step(f"t{w}", w, 0, None, None, None, None) | {"end_ns": None} for w in range(4)]
    assert diagnose(case(rows, provisional=True)) == []


def test_unknown_time_of_steps_that_tell_no_phases_is_not_blamed_on_lost_spans() -> None:
    blind = [step(f"x{k}", k % 4, 0, None, None, None, None) | {"end_ns": 1000} for k in range(8)]
    (found,) = [one for one in diagnose(case(blind)) if one.rule == "telemetry-gaps"]
    assert "8 of 8 steps told neither prefill nor decode" in found.title
    assert "heddle.prefill_s" in found.knob
    (lost,) = diagnose(unseen())
    assert "spans were dropped or never sent" in lost.title
