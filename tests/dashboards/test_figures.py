"""Figures draw what the frames say: sums, orders, and the maximum whatever the size."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from browser.fake_rollouts import HOSTILE, START_NS, Story, frame

from heddle.dashboards import facts, theme
from heddle.dashboards.figures import accounts, makespan, strip, tail, waterfall

SECOND = 1_000_000_000


def _data(figure: Any) -> Any:
    """Plotly types its traces as nothing in particular."""
    return figure.data


def _layout(figure: Any) -> Any:
    return figure.layout


def test_stacked_bars_sum_to_the_partition_exactly() -> None:
    story = Story(("verl",), trajectories=12)
    partition = story.query("partition", rollout="rollout-1")
    states = accounts.by_state(partition)
    assert sum(states.values()) == partition["gpu_ns"].sum()
    figure = accounts.stacked({"a": states}, "light")
    drawn = sum(trace.x[0] for trace in _data(figure))
    assert drawn == pytest.approx(sum(states.values()) / 1e9)


def test_the_legend_follows_precedence_whatever_the_frame_order() -> None:
    rows = [{"state": s, "gpu_ns": 5} for s in ("tail_bubble", "busy_decode", "down")]
    states = accounts.by_state(frame("partition", rows))
    assert list(states) == ["down", "busy_decode", "tail_bubble"]
    names = [trace.name for trace in _data(accounts.stacked({"a": states}, "dark"))]
    assert names == ["down", "decode", "tail bubble"]


def test_a_share_of_nothing_is_drawn_as_nothing() -> None:
    assert len(_data(accounts.stacked({"a": {}}, "light", share=True))) == 0


def _walk(seed: int, count: int, workers: int) -> pl.DataFrame:
    """So many pieces one after the other on each worker, one gap in the middle of each."""
    rng, rows = np.random.default_rng(seed), list[dict[str, Any]]()
    for worker in range(workers):
        at = START_NS
        for n, length in enumerate(rng.integers(1, 9, count) * SECOND):
            at += 100 * SECOND if n == count // 2 else 0
            state = str(rng.choice(["busy_decode", "busy_mixed", "tool_wait"]))
            rows.append(
                {"worker_id": f"w{worker}", "degree": 2, "state": state, "start_ns": at,
                 "end_ns": at + int(length)}
            )  # fmt: skip
            at += int(length)
    return frame("strips", rows)


@pytest.mark.parametrize(("count", "workers"), [(3_000, 1), (400, 8), (100, 8)])
def test_a_strip_of_many_pieces_shows_every_instant_once_and_the_longest_as_they_are(
    count: int, workers: int
) -> None:
    strips = _walk(count, count, workers)
    length = pl.col("end_ns") - pl.col("start_ns")
    longest = strips.with_row_index().sort(length, descending=True).row(0, named=True)
    drawn = strip.drawn(strips)
    covered = [f.group_by("worker_id").agg(length.sum()).sort("worker_id") for f in (drawn, strips)]
    assert covered[0].equals(covered[1])
    ordered = drawn.sort("worker_id", "start_ns").with_columns(
        before=pl.col("end_ns").shift(1).over("worker_id")
    )
    assert ordered.filter(pl.col("start_ns") < pl.col("before")).is_empty()
    gaps = ordered.filter(pl.col("start_ns") > pl.col("before"))
    assert gaps.height == workers, "a gap stays a gap"
    assert drawn.height <= strip.PIECES + 2 * workers
    figure = strip.strip(strips, "dark", start_ns=START_NS)
    assert strip.merged(strips, figure) == strips.height - drawn.height
    assert drawn.filter(
        start_ns=longest["start_ns"], end_ns=longest["end_ns"], state=longest["state"]
    ).height
    if strips.height <= strip.PIECES:
        assert drawn.height == strips.height


def test_what_is_drawn_as_one_has_the_state_of_most_of_its_time() -> None:
    at, rows = START_NS, list[dict[str, Any]]()
    for _ in range(strip.PIECES):
        for state, length in (("busy_mixed", 2), ("busy_decode", 3), ("tool_wait", 1)):
            rows.append({"worker_id": "w0", "degree": 1, "state": state, "start_ns": at,
                         "end_ns": at + length})  # fmt: skip
            at += length
    rows.append({"worker_id": "w0", "degree": 1, "state": "queued", "start_ns": at,
                 "end_ns": at + SECOND})  # fmt: skip
    drawn = strip.drawn(frame("strips", rows))
    assert drawn.row(drawn.height - 1, named=True)["state"] == "queued"
    tail = drawn.sort("start_ns").row(drawn.height - 2, named=True)
    assert (tail["state"], tail["end_ns"]) == ("busy_decode", at)


def test_gaps_narrower_than_a_pixel_are_no_gaps_where_the_collector_left_pieces_out() -> None:
    strips = _walk(3, 4_000, 1).with_row_index().filter(pl.col("index") % 2 == 0).drop("index")
    assert strip.drawn(strips).height <= strip.PIECES + 2


def test_one_trace_per_state_and_a_lane_for_gpus_without_a_worker() -> None:
    rows = [
        {
            "worker_id": w,
            "degree": d,
            "state": "queued",
            "start_ns": START_NS,
            "end_ns": START_NS + 1,
        }
        for w, d in (("w10", 1), ("w2", 4), (None, None))
    ]
    figure = strip.strip(frame("strips", rows), "light", start_ns=START_NS)
    assert len(_data(figure)) == 1
    assert _layout(figure).yaxis.categoryarray == ("w2 · TP4", "w10 · TP1", "no worker")


def test_survival_keeps_the_top_percent_and_the_maximum() -> None:
    sample = [*range(1, 100_001), 9_999_999]
    xs, ys = tail.survival(sample)
    assert len(xs) < 2_000
    assert xs[-1] == 9_999_999
    assert ys[-1] == pytest.approx(1 / 100_001)
    assert ys[0] == 1.0
    assert {float(x) for x in range(99_100, 100_001)} <= set(xs)


def test_survival_is_the_share_at_or_above() -> None:
    assert tail.survival([3, 1, 2, 0]) == ([1.0, 2.0, 3.0], pytest.approx([1, 2 / 3, 1 / 3]))
    assert tail.survival([]) == ([], [])


def test_the_histogram_counts_every_positive_value_once() -> None:
    sample = [1.0, 5.0, 5.0, 1e6]
    figure = tail.histogram({"a": sample, "b": [2.0]}, "light", unit="s")
    assert sum(_data(figure)[0].y) == 4
    assert sum(_data(figure)[1].y) == 1


def test_groups_are_ordered_by_their_longest_sample() -> None:
    rows = [
        {"group_id": g, "trajectory_id": f"{g}{n}", "output_tokens": n}
        for g, n in (("a", 5), ("a", 100), ("b", 900), ("b", 2), ("c", 50))
    ]
    figure = tail.spread(frame("trajectories", rows), "output_tokens", "light", unit="tokens")
    assert _layout(figure).yaxis.categoryarray == ("b", "a", "c")


def test_speed_ups_are_said_against_the_first_rollout() -> None:
    bars = [makespan.Bar("verl", 300.0), makespan.Bar("heddle", 150.0, 140.0)]
    figure = makespan.comparison(bars, "light")
    _bars, words, planned = _data(figure)
    assert [one.strip() for one in words.text] == ["300 s", "150 s  (2.00x)"]
    assert list(planned.x) == [140.0]


@pytest.mark.parametrize(
    ("made_s", "planned_s", "words_at_s"),
    [
        (100.0, None, 100.0),
        (100.0, 110.0, 110.0),
        (100.0, 130.0, 130.0),
        (100.0, 99.0, 100.0),
        (100.0, 50.0, 100.0),
        (100.0, 190.0, 100.0),
    ],
)
def test_no_diamond_stands_in_the_words_at_a_bars_end(
    made_s: float, planned_s: float | None, words_at_s: float
) -> None:
    bars = [makespan.Bar("verl", 200.0), makespan.Bar("heddle", made_s, planned_s)]
    words = _data(makespan.comparison(bars, "light"))[1]
    assert list(words.x) == [200.0, words_at_s]


def test_each_makespan_is_said_against_the_chosen_rollouts() -> None:
    rows: list[dict[str, Any]] = [
        {"rollout_id": name, "makespan_s": seconds, "state": state}
        for name, seconds, state in (
            ("a", 300.0, "finished"),
            ("b", 150.0, "finished"),
            ("c", 40.0, "running"),
            ("d", None, "abandoned"),
        )
    ]
    assert facts.makespans(rows, rows[1]) == ["300 s  0.50x", "150 s", "40.0 s so far", "–"]
    assert facts.makespans(rows, rows[2]) == ["300 s", "150 s", "40.0 s so far", "–"]


def _step(**more: object) -> pl.DataFrame:
    row = {"step_index": 0, "worker_id": "w0", "start_ns": 0, "end_ns": 10 * SECOND}
    row |= {
        "held_ns": SECOND,
        "queue_ns": 2 * SECOND,
        "prefill_ns": SECOND,
        "decode_ns": 5 * SECOND,
    }
    return frame("steps", [{**row, **more}])


def test_a_step_is_cut_in_order_and_its_pieces_cover_it() -> None:
    found = waterfall.pieces(_step(), frame("tool_calls", []), frame("moves", []), now_ns=0)
    assert [piece.phase for piece in found] == ["held", "queue", "prefill", "decode", "rest"]
    assert found[0].start_ns == 0
    assert found[-1].end_ns == 10 * SECOND
    assert all(a.end_ns == b.start_ns for a, b in pairwise(found))


def test_a_running_step_is_drawn_to_now() -> None:
    found = waterfall.pieces(
        _step(end_ns=None), frame("tool_calls", []), frame("moves", []), now_ns=7 * SECOND
    )
    assert [(piece.phase, piece.end_ns) for piece in found] == [("running", 7 * SECOND)]


def test_nobody_knows_what_a_step_without_phases_was() -> None:
    bare = _step(held_ns=None, queue_ns=None, prefill_ns=None, decode_ns=None, worker_id=None)
    found = waterfall.pieces(bare, frame("tool_calls", []), frame("moves", []), now_ns=0)
    assert [(piece.phase, piece.lane) for piece in found] == [("unknown", "no worker yet")]


def test_plotly_labels_cannot_become_markup() -> None:
    rows = [{"tool_name": HOSTILE, "start_ns": 0, "end_ns": SECOND}]
    found = waterfall.pieces(
        frame("steps", []), frame("tool_calls", rows), frame("moves", []), now_ns=0
    )
    assert "<img" not in str(waterfall.waterfall(found, "light", start_ns=0).to_json())


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_every_figure_draws_nothing_without_data(mode: theme.Mode) -> None:
    assert not _data(accounts.stacked({}, mode))
    assert not _data(strip.strip(frame("strips", []), mode, start_ns=0))
    assert not _data(tail.histogram({}, mode, unit="s"))
    assert not _data(waterfall.waterfall([], mode, start_ns=0))
    tail.ccdf({"a": []}, mode, unit="s")
    tail.spread(frame("trajectories", []), "steps", mode, unit="steps")
    makespan.comparison([], mode)


def test_large_groups_are_thinned_by_rank_and_keep_their_longest() -> None:
    rows = [
        {"trajectory_id": f"t{group}-{n:03d}", "group_id": f"g{group}", "output_tokens": 10 + n}
        for group, size in ((0, 200), (1, tail.SAMPLES))
        for n in range(size)
    ]
    (dots,) = tail.spread(frame("trajectories", rows), "output_tokens", "light", unit="tokens").data
    first = sorted(x for x, y in zip(dots.x, dots.y, strict=True) if y == "g0")
    assert len(dots.x) == 2 * tail.SAMPLES
    assert (first[-1], first[-2], first[0]) == (209, 201, 17)
