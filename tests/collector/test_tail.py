"""Do the numbers of the tail say what they claim, and is its far end never thinned away?"""

from __future__ import annotations

import math
import random
from typing import Any

import polars as pl

from heddle.collector import records
from heddle.collector.tail import ccdf, spread, stragglers, summarize, truncated_share

Row = dict[str, Any]


def trajectories(rows: list[Row]) -> pl.DataFrame:
    schema = records.schema("trajectories")
    return pl.DataFrame([{k: row.get(k) for k in schema} for row in rows], schema=schema)


def test_quantiles_and_the_longest_over_the_middle() -> None:
    got = summarize(trajectories([{"output_tokens": n, "tool_s": 0.0} for n in range(1, 102)]))
    assert got.schema == pl.Schema(records.schema("tail"))
    tokens, tools = got.rows(named=True)
    assert tokens == {
        "metric": "output_tokens", "count": 101, "p50": 51.0, "p90": 91.0, "p99": 100.0,
        "max": 101.0, "max_over_median": 101 / 51,
    }  # fmt: skip
    assert tools["max_over_median"] is None
    assert summarize(trajectories([])).is_empty()


def test_ccdf_is_the_share_at_or_above_each_value() -> None:
    got = ccdf(pl.Series([4, 1, 2, 2, None]))
    assert got.rows() == [(1.0, 1.0), (2.0, 0.75), (4.0, 0.25)]
    assert ccdf(pl.Series([], dtype=pl.Float64)).is_empty()


def test_a_thinned_ccdf_keeps_the_maximum_and_everything_from_p99_up() -> None:
    rng = random.Random(1)
    values = [rng.lognormvariate(8, 1) for _ in range(100_000)]
    got = ccdf(pl.Series(values))
    assert got.height <= 2000
    top = sorted(values)[99_000:]
    assert set(top) <= set(got["value"])
    assert (got["value"].min(), got["value"].max()) == (min(values), max(values))
    exact = {value: (100_000 - rank) / 100_000 for rank, value in enumerate(sorted(values))}
    assert all(math.isclose(share, exact[value]) for value, share in got.iter_rows())


def test_a_ccdf_of_a_million_values_keeps_to_its_marks_and_its_maximum() -> None:
    got = ccdf(pl.Series(range(1_000_000)))
    assert got.height <= 2000
    assert got["value"].max() == 999_999


def test_the_longest_come_first_with_what_took_most_of_their_time() -> None:
    rows = [
        {"trajectory_id": "b", "duration_s": 100.0, "tool_s": 70.0, "decode_s": 20.0},
        {"trajectory_id": "a", "duration_s": 100.0, "held_s": 5.0, "queue_s": 60.0},
        {"trajectory_id": "c", "duration_s": 90.0, "decode_s": 10.0},
        {"trajectory_id": "d", "duration_s": 10.0},
        {"trajectory_id": "e", "duration_s": None},
    ]
    got = stragglers(trajectories(rows), 3)
    assert got.select("trajectory_id", "cause", "cause_s", "cause_share").rows() == [
        ("a", "queued", 60.0, 0.6),
        ("b", "tool", 70.0, 0.7),
        ("c", "orchestrator", 80.0, 80 / 90),
    ]


def grouped(sizes: dict[str, list[int]], **more: Any) -> pl.DataFrame:
    rows = [{"group_id": g, "output_tokens": n, **more} for g, ns in sizes.items() for n in ns]
    return trajectories(rows)


def test_spread_within_a_group_is_its_longest_over_its_median() -> None:
    got = spread(grouped({"even": [10, 10, 10], "wide": [10, 20, 80], "gone": [0]}))
    assert got.groups.rows() == [("wide", 3, 20.0, 80, 4.0), ("even", 3, 10.0, 10, 1.0)]


def test_the_prompt_explains_all_none_or_a_known_share_of_the_spread() -> None:
    assert spread(grouped({"a": [10, 10], "b": [99, 99]})).between_share == 1.0
    assert spread(grouped({"a": [10, 99], "b": [10, 99]})).between_share == 0.0
    assert spread(grouped({"a": [10, 99]})).between_share is None
    assert spread(grouped({"a": [10], "b": [99]})).between_share is None
    assert spread(grouped({"a": [10, 20], "b": [30, 99]}, truncated=True)).between_share is None
    rng = random.Random(2)
    sizes: dict[str, list[int]] = {}
    for g in range(400):
        mean = rng.gauss(9, 0.6)
        sizes[f"g{g}"] = [round(math.exp(rng.gauss(mean, 0.8))) for _ in range(16)]
    share = spread(grouped(sizes)).between_share
    assert share is not None
    assert abs(share - 0.36) < 0.04


def test_the_truncated_share_counts_finished_trajectories_only() -> None:
    rows = [{"state": "finished", "truncated": t} for t in (True, False, None, False)]
    running = {"state": "running", "truncated": True}
    assert truncated_share(trajectories([*rows, running])) == 0.25
    assert truncated_share(trajectories([running])) is None
