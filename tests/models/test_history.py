"""Group history against simulation: calibration, shrinkage, censoring, running siblings."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.models import beyond
from heddle.models.history import GroupHistory
from heddle.models.lognormal import mills
from heddle.models.predictor import DEFAULT_MEDIAN_TOKENS, NoPrediction, Predictor
from heddle.models.types import Query
from heddle.models.variance import UNKNOWN, GroupStats, between_variance, level_of

BETWEEN, WITHIN = 0.3, 0.15


def history_frame(logs: dict[tuple[str, str], list[float]]) -> pl.DataFrame:
    """One row a group, as the collector's `history` query gives it."""
    rows = [
        {
            "run_id": "r",
            "task": task,
            "group_id": group,
            "trajectories": len(values),
            "mean_log_tokens": float(np.mean(values)),
            "var_log_tokens": float(np.var(values, ddof=1)) if len(values) > 1 else None,
            "mean_steps": 4.0,
            "mean_tool_s": 9.0,
        }
        for (task, group), values in logs.items()
    ]
    return pl.DataFrame(rows, infer_schema_length=None)


def drawn(
    groups: int, samples: int, seed: int, task: str = "a"
) -> dict[tuple[str, str], list[float]]:
    rng = np.random.default_rng(seed)
    means = rng.normal(7.0, math.sqrt(BETWEEN), groups)
    return {
        (task, f"{task}{i}"): rng.normal(mean, math.sqrt(WITHIN), samples).tolist()
        for i, mean in enumerate(means)
    }


def test_the_interval_holds_four_in_five_unseen_samples_at_admission_and_after_survival():
    logs = drawn(2_000, 5, seed=3)
    history = GroupHistory.from_frame(history_frame({k: v[:4] for k, v in logs.items()}))
    for so_far in (0, 600, 1_500):
        inside = []
        for (task, group), values in logs.items():
            left = math.exp(values[4]) - so_far
            if left > 0:
                length = history.predict(Query(group=group, task=task, tokens_so_far=so_far))
                inside.append(length.p10 <= left <= length.p90)
        assert 0.75 <= np.mean(inside) <= 0.85, so_far


def test_a_group_never_seen_is_predicted_from_its_task_with_the_spread_of_both_levels():
    seen, unseen = drawn(400, 4, seed=5), drawn(400, 1, seed=6)
    history = GroupHistory.from_frame(history_frame(seen))
    length = history.predict(Query(group="nobody", task="a"))
    totals = np.exp([v[0] for v in unseen.values()])
    assert float(np.mean((totals >= length.p10) & (totals <= length.p90))) == pytest.approx(
        0.8, abs=0.06
    )


def test_variance_between_and_within_groups_is_recovered():
    groups = [
        GroupStats(len(v), float(np.mean(v)), float(np.var(v)) * len(v))
        for v in drawn(600, 8, seed=7).values()
    ]
    level = level_of(groups, UNKNOWN)
    assert level.within == pytest.approx(WITHIN, rel=0.1)
    assert level.between == pytest.approx(BETWEEN, rel=0.2)
    assert level.mean == pytest.approx(7.0, abs=0.1)


def test_groups_that_differ_by_chance_alone_have_next_to_no_variance_between_them():
    rng = np.random.default_rng(8)
    stats = [
        GroupStats(4, float(np.mean(v)), float(np.var(v)) * 4) for v in rng.normal(7, 0.4, (300, 4))
    ]
    assert between_variance(stats, 0.16, 0.22) < 0.02


def test_more_samples_of_a_group_pull_further_from_its_task():
    logs = drawn(50, 4, seed=9)
    few, many = ("a", "few"), ("a", "many")
    history = GroupHistory.from_frame(history_frame(logs | {few: [9.0], many: [9.0] * 12}))
    task, one, twelve = (
        history.predict(Query(group=g, task="a")).p50 for g in ("nobody", "few", "many")
    )
    assert task < one < twelve < math.exp(9.0)


def test_tasks_do_not_mix():
    logs = drawn(20, 4, seed=1, task="short") | {
        ("long", f"l{i}"): [10.0, 10.2, 9.8] for i in range(20)
    }
    history = GroupHistory.from_frame(history_frame(logs))
    short = history.predict(Query(group="new", task="short")).p50
    long = history.predict(Query(group="new", task="long")).p50
    other = history.predict(Query(group="new", task="neither")).p50
    assert short < other < long
    assert GroupHistory.from_frame(history_frame(logs), task="long").samples("short1") == 0


def test_without_any_history_the_answer_is_the_documented_default():
    length = GroupHistory().predict(Query(group="g"))
    constant = NoPrediction().predict(Query(group="g"))
    assert length.p50 == pytest.approx(DEFAULT_MEDIAN_TOKENS)
    assert length.p90 == pytest.approx(constant.p90)


def test_the_constant_looks_at_nothing():
    queries = [Query(group="a"), Query(group="b", tokens_so_far=9_999, steps_so_far=7)]
    assert len(set(NoPrediction().predict_many(queries))) == 1


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 50_000), min_size=1, max_size=12), st.randoms())
def test_the_order_in_which_siblings_finish_does_not_matter(totals, random):
    shuffled = random.sample(totals, len(totals))
    answers = []
    for order in (totals, shuffled):
        history = GroupHistory()
        for total in order:
            history.observe("g", total)
        answers.append(history.predict(Query(group="g")).p50)
    assert answers[0] == pytest.approx(answers[1], rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(10, 20_000), min_size=1, max_size=8), st.floats(10, 30_000))
def test_a_sibling_cut_off_at_a_length_never_makes_the_group_look_shorter(totals, cut):
    history = GroupHistory()
    for total in totals:
        history.observe("g", total)
    before = history.predict(Query(group="g"))
    history.observe("g", cut, censored=True)
    assert history.predict(Query(group="g")).p50 >= before.p50 * (1.0 - 1e-9)


def test_truncated_trajectories_of_past_rollouts_are_censored_as_live_ones_are():
    rows = history_frame({("a", "g"): [6.0, 7.0]})
    cut = rows.with_columns(truncated=pl.lit(2), mean_log_truncated=pl.lit(8.0))
    recorded, live = GroupHistory.from_frame(cut), GroupHistory.from_frame(rows)
    for _ in range(2):
        live.observe("g", math.exp(8.0), censored=True, task="a")
    query = Query(group="g", task="a")
    assert recorded.predict(query).p50 == pytest.approx(live.predict(query).p50, rel=1e-9)
    assert recorded.predict(query).p50 > GroupHistory.from_frame(rows).predict(query).p50


def test_a_group_of_which_all_were_cut_off_is_expected_longer_than_where_they_were():
    rows = history_frame({("a", "g"): [6.0], ("a", "h"): [6.0, 6.5, 5.5]}).with_columns(
        trajectories=pl.when(pl.col("group_id") == "g").then(0).otherwise(3),
        truncated=pl.when(pl.col("group_id") == "g").then(4).otherwise(0),
        mean_log_tokens=pl.when(pl.col("group_id") == "h").then(pl.col("mean_log_tokens")),
        mean_log_truncated=pl.when(pl.col("group_id") == "g").then(9.0),
        mean_tokens=pl.lit(500.0),
    )
    history = GroupHistory.from_frame(rows)
    assert history.predict(Query(group="g", task="a")).p50 > 2 * math.exp(6.0)
    assert history.mean_tokens("g", "a") == pytest.approx(500.0)
    assert history.samples("g") == 0


def test_running_siblings_correct_the_bias_of_early_finishers():
    rng = np.random.default_rng(11)
    naive, corrected = [], []
    for _ in range(150):
        logs = rng.normal(rng.normal(math.log(1024), 0.5), 0.4, 16)
        cut = float(np.sort(logs)[3])
        for survivors, errors in ((False, naive), (True, corrected)):
            history = GroupHistory()
            for i, at in enumerate(logs):
                if at <= cut:
                    history.observe("g", math.exp(at))
                elif survivors:
                    history.survives("g", f"t{i}", math.exp(cut))
            median = math.log(history.predict(Query(group="g", trajectory="other")).p50)
            errors.append(median - float(np.mean(logs)))
    assert np.mean(naive) < -0.2
    assert abs(np.mean(corrected)) < 0.08


def test_its_own_survival_counts_once_and_finishing_ends_it():
    history = GroupHistory()
    history.survives("g", "t1", 5_000)
    assert history.predict(Query(group="g", trajectory="t1")) == GroupHistory().predict(
        Query(group="g")
    )
    history.observe("g", 6_000, trajectory="t1")
    other = GroupHistory()
    other.observe("g", 6_000)
    assert history.predict(Query(group="g")) == other.predict(Query(group="g"))


def test_draws_are_survivors_of_the_same_law_as_the_quantiles():
    history = GroupHistory.from_frame(history_frame(drawn(30, 4, seed=2)))
    query = Query(group="a3", task="a", tokens_so_far=900)
    law = history.total(query)
    draws = law.draws(4_000, np.random.default_rng(0), query.tokens_so_far)
    length = history.predict(query)
    assert float(np.mean(draws < length.p50)) == pytest.approx(0.5, abs=0.03)
    assert float(draws.mean()) == pytest.approx(length.mean, rel=0.1)


def test_steps_and_tool_seconds_are_shrunk_to_the_task_and_unknown_without_history():
    frame = history_frame(drawn(10, 4, seed=2)).with_columns(
        mean_steps=pl.when(pl.col("group_id") == "a0").then(20.0).otherwise(4.0)
    )
    history = GroupHistory.from_frame(frame)
    assert 15.0 < (history.mean_steps("a0", "a") or 0) < 20.0
    assert history.mean_steps("new", "a") == pytest.approx(5.6)
    assert history.mean_tool_s("a0") == pytest.approx(9.0)
    assert GroupHistory().mean_steps("new") is None


def test_both_untrained_predictors_meet_the_protocol():
    predictors: list[Predictor] = [NoPrediction(), GroupHistory()]
    assert [p.version for p in predictors] == ["none", "group-history"]


def test_rows_without_a_group_tell_of_their_task_and_are_nobodys_siblings():
    nameless = history_frame({("short", "x"): [5.0, 5.2, 5.1], ("long", "y"): [9.0, 9.3, 9.1]})
    history = GroupHistory.from_frame(nameless.with_columns(group_id=pl.lit(None, pl.String)))
    short = history.predict(Query(group="new", task="short"))
    long = history.predict(Query(group="new", task="long"))
    assert short.p50 * 2 < long.p50
    assert history.samples("") == 0


@given(st.lists(st.floats(-28.0, 40.0), min_size=1, max_size=20))
def test_the_mills_ratio_of_many_is_that_of_each(zs):
    assert beyond.mills_many(np.array(zs)) == pytest.approx([mills(z) for z in zs], rel=1e-9)


groups_of_laws = st.lists(
    st.tuples(
        st.floats(3.0, 12.0), st.floats(0.01, 2.0), st.floats(0.01, 1.0),
        st.lists(st.floats(0.0, 13.0), max_size=8),
    ), min_size=1, max_size=6,
)  # fmt: skip


def padded(groups: list[tuple[float, float, float, list[float]]]) -> np.ndarray:
    widest = max(len(cut) for *_, cut in groups)
    filled = [[*cut, *[-np.inf] * (widest - len(cut))] for *_, cut in groups]
    return np.array(filled).reshape(len(groups), widest)


@settings(deadline=None, max_examples=40)
@given(groups_of_laws)
def test_modes_of_many_groups_are_those_of_each(groups):
    columns = [np.array(column) for column in list(zip(*groups, strict=True))[:3]]
    at, variance = beyond.modes(*columns, padded(groups))
    wanted = [beyond.mode(*group) for group in groups]
    assert at == pytest.approx([w[0] for w in wanted], rel=1e-8)
    # The hazard less z: far in the tail what the series leaves, 1e-10, counts a thousand times.
    assert variance == pytest.approx([w[1] for w in wanted], rel=2e-6)


@settings(deadline=None, max_examples=40)
@given(groups_of_laws)
def test_the_mode_of_a_member_is_that_of_its_group_without_it(groups):
    members = [(g, own) for g, group in enumerate(groups) for own in range(-1, len(group[3]))]
    of, own = np.array(members).T
    known = np.array([group[:3] for group in groups]).T
    at, variance = beyond.modes_of_others(known, padded(groups), of, own)
    wanted = [
        beyond.mode(*groups[g][:3], [v for i, v in enumerate(groups[g][3]) if i != out])
        for g, out in members
    ]
    # Newton's last step is below 1e-6 of a spread, and the curvature is of where it began.
    assert at == pytest.approx([w[0] for w in wanted], rel=1e-6)
    assert variance == pytest.approx([w[1] for w in wanted], rel=1e-2)


def test_many_questions_are_answered_as_one_by_one():
    history = GroupHistory()
    for g in range(5):
        for s in range(4):
            history.observe(f"g{g}", 200 * (g + 1) + 50 * s, censored=s == 3, task="t")
            history.survives(f"g{g}", f"t{g}-{s + 4}", 300 * (s + 1), task="t")
    asked = [
        Query(group=f"g{g}", trajectory=f"t{g}-{s}", task="t", tokens_so_far=100 * s)
        for g in range(6)
        for s in range(8)
    ]
    one_by_one = [history.predict(query) for query in asked]
    for many, one in zip(history.predict_many(asked), one_by_one, strict=True):
        assert (many.p10, many.p50, many.p90) == pytest.approx((one.p10, one.p50, one.p90), 1e-7)
