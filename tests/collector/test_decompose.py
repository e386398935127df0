"""Does each trajectory's time fall apart into parts that sum to it, with the right ones named?"""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest

from heddle.collector import records
from heddle.collector.decompose import PARTS, decompose
from heddle.collector.facts import gather
from heddle.collector.sums import Law

Row = dict[str, Any]
LAW = Law(base_ns_per_token=8.0, request_ns_per_token=2.0, context_ns_per_token=0.01)


def frame(query: str, rows: list[Row]) -> pl.DataFrame:
    schema = records.schema(query)
    return pl.DataFrame([{k: row.get(k) for k in schema} for row in rows], schema=schema)


def apart(
    steps: list[Row], tools: list[Row] | None = None, laws: dict[int, Law] | None = None
) -> pl.DataFrame:
    rows = [{"trajectory_id": "t", "worker_id": "w", "degree": 1} | row for row in steps]
    frames: dict[str, Any] = {q: frame(q, []) for q in ("moves", "workers")}
    owners = {row["trajectory_id"] for row in rows}
    frames["trajectories"] = frame("trajectories", [{"trajectory_id": t} for t in owners])
    calls = [{"trajectory_id": "t"} | row for row in tools or []]
    frames |= {"steps": frame("steps", rows), "tool_calls": frame("tool_calls", calls)}
    found = gather({"start_ns": 0, "end_ns": 10**7}, **frames, now_ns=10**7)
    parts = decompose(found, frames["steps"], {1: LAW} if laws is None else laws)
    assert parts.select(pl.sum_horizontal(*PARTS)).to_series().eq(parts["duration_ns"]).all()
    return parts


def nonzero(parts: pl.DataFrame) -> dict[str, int]:
    return {part: parts[part][0] for part in PARTS if parts[part][0]}


def step(start: int, end: int, *parts: int | None, **more: Any) -> Row:
    names = ("held_ns", "queue_ns", "prefill_ns", "decode_ns")
    return {"start_ns": start, "end_ns": end} | dict(zip(names, parts, strict=False)) | more


def test_decode_is_the_law_alone_plus_context_and_the_rest_is_interference() -> None:
    # 100 tokens: 100 x (8 + 2) alone; 100 x 0.01 x (950 + 50) for the context; 3000 took place.
    row = step(0, 4000, 100, 200, 300, 3000, output_tokens=100, input_tokens=950)
    assert nonzero(apart([row])) == {
        "held_ns": 100, "queued_ns": 200, "prefill_ns": 300, "base_ns": 1000,
        "context_ns": 1000, "interference_ns": 1000, "orchestrator_ns": 400,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("decode", "expected"),
    [(700, {"base_ns": 700}), (1200, {"base_ns": 1000, "context_ns": 200})],
)
def test_base_and_context_never_exceed_the_time_that_decoding_took(
    decode: int, expected: dict[str, int]
) -> None:
    row = step(0, decode, 0, 0, 0, decode, output_tokens=100, input_tokens=950)
    assert nonzero(apart([row])) == expected


def test_decode_of_a_degree_without_a_law_is_not_split() -> None:
    steps = [
        step(0, 500, 0, 0, 0, 500, output_tokens=10, input_tokens=0, step_index=0),
        step(500, 900, 0, 0, 0, 400, output_tokens=10, step_index=1, degree=4),
    ]
    expected = {"base_ns": 100, "interference_ns": 400, "unsplit_ns": 400}
    assert nonzero(apart(steps)) == expected
    assert nonzero(apart(steps, laws={})) == {"unsplit_ns": 900}


def test_prefill_of_tokens_seen_before_and_no_longer_cached_is_recompute() -> None:
    steps = [
        step(0, 100, 0, 0, 100, 0, input_tokens=900, output_tokens=100, cached_tokens=0),
        # 1500 tokens in, 400 cached: 500 of the prompt before were lost, its 100 of output were
        # lost or written anew, 500 are new; 1100 to prefill.
        step(100, 1200, 0, 0, 1100, 0, input_tokens=1500, output_tokens=0, cached_tokens=400),
    ]
    parts = apart(steps)
    assert nonzero(parts) == {"prefill_ns": 100 + 600, "recompute_ns": 500}
    assert parts["rewritten_ns"].to_list() == [100]
    steps[1]["cached_tokens"] = None
    assert nonzero(apart(steps)) == {"prefill_ns": 1200}


def test_an_agent_that_drops_its_reasoning_or_compacts_its_context_lost_nothing() -> None:
    told = [
        # 1000 of prompt, 800 of output; the next prompt keeps 100 of them and adds 300.
        step(0, 10, 0, 0, 10, 0, input_tokens=1000, output_tokens=800, cached_tokens=0),
        step(10, 410, 0, 0, 400, 0, input_tokens=1400, output_tokens=0, cached_tokens=1000),
        # Compacted to 600, of which the system prompt of 200 is still cached.
        step(410, 810, 0, 0, 400, 0, input_tokens=600, output_tokens=0, cached_tokens=200),
    ]
    parts = apart(told)
    assert nonzero(parts) == {"prefill_ns": 810}
    assert parts["rewritten_ns"].to_list() == [400 + 400]


def test_tools_and_unknown_time_are_parts_of_their_own() -> None:
    steps = [step(0, 100, 0, 0, 0, None, step_index=0), step(400, 500, step_index=1)]
    parts = apart(steps, tools=[{"start_ns": 100, "end_ns": 350, "tool_name": "bash"}])
    # The first step's null decode with a prefill of 0 was seen; the second step says nothing.
    assert nonzero(parts) == {"orchestrator_ns": 150, "tool_ns": 250, "unknown_ns": 100}


def test_random_trajectories_with_overlapping_calls_sum_to_their_duration() -> None:
    rng = random.Random(5)
    steps: list[Row] = []
    for k in range(1500):
        start, more = rng.randrange(5000), {"trajectory_id": f"t{k // 5:03}"}
        parts = [rng.choice([None, -5, 0, rng.randrange(900)]) for _ in range(4)]
        tokens = {"input_tokens": rng.randrange(3000), "cached_tokens": rng.choice([None, 9, 500])}
        tokens |= {"output_tokens": rng.randrange(200), "degree": rng.choice([1, 2, None])}
        end = rng.choice([None, start + rng.randrange(3000)])
        steps.append(step(start, end, *parts, **more, **tokens, step_index=k % 5))  # pyright: ignore[reportArgumentType]
    parts = apart(steps)
    assert parts.height == 300
    assert all(parts[part].min() >= 0 for part in PARTS)  # pyright: ignore[reportOptionalOperand, reportOperatorIssue]
