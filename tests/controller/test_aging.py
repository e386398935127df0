"""Does nobody wait for ever, and does age change nothing before that?"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heddle.controller.core.priority import (
    AGE_S,
    IN_FLIGHT,
    ORDERS,
    OVERTAKEN,
    Standing,
    aged,
    in_flight_first,
)

orders = st.sampled_from(sorted(ORDERS))
waiting = st.lists(
    st.tuples(
        st.integers(0, 3 * OVERTAKEN), st.integers(0, 5), st.integers(1, 9_000), st.booleans()
    ),
    min_size=1, max_size=12, unique_by=lambda row: row[0],
)  # fmt: skip


def standing(rows):
    columns = [(arrival, steps, 0, expected, fresh) for arrival, steps, expected, fresh in rows]
    return Standing(*np.array(columns, dtype=np.float64).T)


@given(orders, waiting)
def test_the_overtaken_go_first_as_they_came_and_the_rest_as_the_order_says(order, rows):
    newest = max(row[0] for row in rows)
    keys = ORDERS[order](standing(rows))

    def key(place):
        arrival, _, _, fresh = rows[place]
        late = newest - arrival > OVERTAKEN
        return fresh, not late, 0.0 if late else keys[place], arrival

    wanted = sorted(range(len(rows)), key=key)
    assert in_flight_first(order, standing(rows)).tolist() == wanted


@given(orders, waiting)
def test_a_rollout_within_the_limit_is_ordered_as_without_it(order, rows):
    near = [(arrival // 4, *rest) for arrival, *rest in rows]
    among = standing(near)
    plain = np.lexsort((among.arrival, ORDERS[order](among), among.fresh))
    assert in_flight_first(order, among).tolist() == plain.tolist()


@given(st.one_of(st.none(), st.integers(0, IN_FLIGHT)), st.floats(0, 1e6), st.floats(0, 1e6))
def test_age_lifts_a_band_at_a_time_and_never_above_the_highest(band, one_s, other_s):
    sooner, later = sorted((one_s, other_s))
    if band is None:
        assert aged(band, later) is None
        return
    assert aged(band, 0.99 * AGE_S) == band
    assert band <= aged(band, sooner) <= aged(band, later) <= IN_FLIGHT
    assert aged(band, IN_FLIGHT * AGE_S) == IN_FLIGHT


@given(st.integers(0, IN_FLIGHT), st.floats(0, 1e6), st.integers(-30, 30))
def test_age_preempts_only_what_a_client_put_in_reach_of_the_highest_band(band, waited_s, own):
    """SGLang preempts beyond a margin of 10: none of ours by age, nor a warm-up's -1."""
    margin, lifted = 10, aged(band, waited_s)
    if lifted - own > margin:
        assert own < -1
        assert IN_FLIGHT - own > margin
