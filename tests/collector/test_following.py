"""Does following a rollout update by update give what reading it at once gives, exactly?"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from heddle.collector import past, records
from heddle.collector.accounting import Accounts
from heddle.collector.activities import Activity
from heddle.collector.blame import blame, used
from heddle.collector.critical_path import critical_path
from heddle.collector.decompose import decompose
from heddle.collector.facts import NO_SLICES, Facts
from heddle.collector.findings.signals import signals
from heddle.collector.following import Following, Rows
from heddle.collector.spare import spare
from heddle.collector.sums import Law
from heddle.collector.trails import Frames

S = 10**9
Row = dict[str, Any]


def frame(query: str, rows: list[Row]) -> pl.DataFrame:
    schema = records.schema(query)
    return pl.DataFrame([{k: row.get(k) for k in schema} for row in rows], schema=schema)


def life(rng: random.Random, name: str, steps: int) -> list[tuple[int, str, Row]]:
    """One trajectory's rows with the instant at which each arrives: markers, then spans."""
    at, worker = rng.randrange(8 * S), rng.randrange(3)
    told: list[tuple[int, str, Row]] = []
    for index in range(steps):
        worker = rng.randrange(3) if rng.random() < 0.2 else worker
        parts = [rng.randrange(1, top * S) for top in (1, 1, 1, 9)]
        end = at + sum(parts) + rng.randrange(S)
        row: Row = {"trajectory_id": name, "step_index": index, "start_ns": at, "degree": 1}
        if rng.random() < 0.7:
            told.append((at, "steps", row))
        names = ("held_ns", "queue_ns", "prefill_ns", "decode_ns")
        whole = row | dict(zip(names, parts, strict=True)) | {"end_ns": end}
        whole |= {"worker_id": f"w{worker}", "output_tokens": 50, "input_tokens": 900 + 60 * index}
        if rng.random() > 0.05:
            # Some spans are late by up to a minute.
            late = rng.randrange(60 * S) if rng.random() < 0.1 else 0
            told.append((end + late, "steps", whole | {"cached_tokens": 800}))
        call: Row = {"trajectory_id": name, "tool_name": rng.choice("ab"), "step_index": index}
        length = rng.randrange(4 * S)
        told.append((end, "tool_calls", call | {"start_ns": end}))
        told.append((end + length, "tool_calls", call | {"start_ns": end, "end_ns": end + length}))
        at = end + length
    return told


def known(told: list[tuple[int, str, Row]], now: int) -> dict[tuple[Any, ...], tuple[str, Row]]:
    """What has arrived by now: a span replaces its marker."""
    found: dict[tuple[Any, ...], tuple[str, Row]] = {}
    for at, query, row in sorted(told, key=lambda one: one[0]):
        if at <= now:
            found[query, row["trajectory_id"], row["step_index"]] = query, row
    return found


def frames(rows: list[tuple[str, Row]]) -> Frames:
    names = sorted({row["trajectory_id"] for _, row in rows})
    queries = ("steps", "tool_calls", "moves")
    picked = [frame(query, [row for q, row in rows if q == query]) for query in queries]
    groups = [{"trajectory_id": name, "group_id": name[:2]} for name in names]
    return Frames(*picked, frame("trajectories", groups), NO_SLICES)


def everything(facts: Facts, accounts: Accounts, steps: pl.DataFrame, followed: Any) -> list[Any]:
    found = blame(accounts, facts.groups)
    parts = decompose(facts, steps, {}, followed.doings)
    path = critical_path(facts.window, facts.near, facts.past)
    seen = signals(facts, steps=steps, tool_calls=frame("tool_calls", []))
    return [
        accounts.strips, found.cells, found.by_worker, used(accounts), spare(accounts),
        parts.rows(), path.segments, seen, accounts.reversed_intervals,
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_followed_in_many_updates_or_read_at_once_the_result_is_the_same(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    if seed > 0:
        # What is over moves into the past early, and late spans change it there.
        monkeypatch.setattr(past, "LEAST", 1)
        monkeypatch.setattr(past, "KEEP_NS", seed % 3 * 5 * S)
        monkeypatch.setattr(past, "CHUNKS", 3)
    told = [one for k in range(12) for one in life(rng, f"t{k:02d}", rng.randrange(1, 7))]
    workers = [{"worker_id": f"w{w}", "degree": 1 + w, "start_ns": 0} for w in range(3)]
    ends = [at for at, _, _ in told]
    followed, before, cells = Following(), dict[Any, Any](), list[int]()
    chunks: list[int] = []
    for look in range(1, 25):
        now = max(ends) * look // 24
        rows = known(told, now)
        changed = {key[1] for key, row in rows.items() if before.get(key) != row}
        before = rows
        some = [(q, row) for q, row in rows.values() if row["trajectory_id"] in changed]
        fleet = [Activity("w1", "down", 20 * S, min(now, 30 * S))] if now > 20 * S else []
        rollout = {"start_ns": 0, "end_ns": now if look == 24 else None, "gpus": 7}
        whole, leases = frames([*rows.values()]), frame("workers", workers)
        rows_now = Rows(rollout, whole, leases, now, {1: Law(9e6, 2e4, 30.0)}, fleet)
        swept = followed.ledger.swept
        facts, accounts = followed.look(rows_now, changed, frames(some))
        cells.append(followed.ledger.swept - swept)
        chunks += [len(chunk.rows) for chunk in followed.past.chunks]
        fresh = Following()
        expected = fresh.look(rows_now)
        steps = rows_now.frames.steps
        got = everything(facts, accounts, steps, followed)
        assert got == everything(*expected, steps, fresh)
        assert followed.sums is not None
        assert fresh.sums is not None
        by = "trajectory_id"
        assert followed.sums.sort(by).equals(fresh.sums.sort(by))
        assert sum(accounts.gpu_ns.values()) == accounts.total_gpu_ns
        assert sorted(facts.activities) == sorted(expected[0].activities)
    assert bool(chunks) == (seed > 0)
    # What is settled is not swept again: a look in the middle takes less than a look at all.
    assert sorted(cells)[len(cells) // 2] < cells[-1] / 2


def test_a_late_span_reopens_only_the_slabs_it_touches() -> None:
    def step(k: int, at: int, **more: Any) -> Row:
        row = {"trajectory_id": "t", "worker_id": f"w{k % 3}", "step_index": k, "degree": 1}
        return row | {"start_ns": at, "end_ns": at + S, "decode_ns": S} | more

    workers = [{"worker_id": f"w{w}", "degree": 1, "start_ns": 0} for w in range(3)]
    rows = [("steps", step(k, 10 * S * k)) for k in range(40)]
    late = rows.pop(12)
    rollout = {"start_ns": 0, "gpus": 3}
    followed = Following()
    followed.look(Rows(rollout, frames(rows), frame("workers", workers), 400 * S))
    swept, at = followed.ledger.swept, [*rows, late]
    again = Rows(rollout, frames(at), frame("workers", workers), 400 * S)
    _, accounts = followed.look(again, ["t"], frames(at))
    # The hole on w2 from 111 s to 130 s is none any more, and from 120 s on it was at home on w0:
    # 6 and 4 slabs of 4.3 s, and of every worker the slab in which time goes on.
    assert followed.ledger.swept - swept <= 6 + 4 + 4
    assert accounts.gpu_ns["busy_decode"] == 40 * S


def both_ways(*looks: list[tuple[str, Row]]) -> list[tuple[Any, Any]]:
    """What one worker did by every look, 40 s apart: followed, and read at once in other order."""
    leased = frame("workers", [{"worker_id": "w", "degree": 1, "start_ns": 0}])
    followed, found = Following(), list[tuple[Any, Any]]()
    for k, rows in enumerate(looks):
        told, now = {"start_ns": 0, "gpus": 1}, 40 * S * (k + 1)
        whole = Rows(told, frames(rows), leased, now, {1: Law(9e6, 2e4, 30.0)})
        facts, accounts = followed.look(whole, ["t"], frames(rows))
        fresh, steps = Following(), whole.frames.steps
        anew = fresh.look(replace(whole, frames=frames(rows[::-1])))
        assert followed.sums is not None
        assert fresh.sums is not None
        got = [*everything(facts, accounts, steps, followed), followed.sums.rows()]
        found.append((got, [*everything(*anew, steps, fresh), fresh.sums.rows()]))
    return found


def row(**more: Any) -> Row:
    return {"trajectory_id": "t", "worker_id": "w", "start_ns": S, "degree": 1} | more


def test_of_parallel_calls_that_last_the_one_that_ends_later_is_blamed_from_the_start_on() -> None:
    step = "steps", row(start_ns=0, end_ns=S, decode_ns=S, step_index=0)
    a, b = (("tool_calls", row(tool_name=name)) for name in "ab")
    ended = "tool_calls", row(tool_name="b", end_ns=70 * S)
    late = "tool_calls", row(tool_name="a", end_ns=50 * S)
    for got, anew in both_ways([step, a, b], [step, a, ended], [step, late, ended]):
        assert got == anew


def test_a_step_told_twice_is_followed_as_it_is_read() -> None:
    def step(span: str, **more: Any) -> tuple[str, Row]:
        return "steps", row(span_id=span, step_index=0, input_tokens=900, cached_tokens=0) | more

    one, two = (step(span, decode_ns=30 * S, end_ns=31 * S) for span in "xy")
    other = step("z", decode_ns=9 * S, end_ns=60 * S, input_tokens=500, cached_tokens=100)
    for got, anew in both_ways([one, two], [one, other], [two, other], [one]):
        assert got == anew
