"""Units as a person says them, and the palette's promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from heddle.dashboards import theme


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "–"),
        (0.18, "180 ms"),
        (0.9996, "1.0 s"),
        (4.21, "4.2 s"),
        (379.4, "379 s"),
        (725, "12 min 05 s"),
        (12000, "3 h 20 min"),
        (-2.0, "−2.0 s"),
    ],
)
def test_seconds_read_as_a_person_says_them(value: float | None, said: str) -> None:
    assert theme.seconds(value) == said


@pytest.mark.parametrize(
    ("value", "said"), [(950, "950"), (999.9, "1.0k"), (12_400, "12.4k"), (3_100_000, "3.1M")]
)
def test_counts_carry_k_and_m(value: float, said: str) -> None:
    assert theme.count(value) == said


def test_a_share_reads_alike_in_words_and_in_the_columns_of_every_table() -> None:
    assert theme.percent(0.8751) == theme.PERCENT % 87.51 == "87.5 %"
    views = Path(theme.__file__).with_name("views")
    text = "".join(path.read_text() for path in views.glob("*.py"))
    assert set(re.findall(r'format="(percent|[^"]*%%[^"]*)"', text)) == {"%.0f %%"}


def test_a_moment_names_its_zone_and_keeps_its_milliseconds() -> None:
    at_ns = 1_796_000_000_123_999_999
    assert theme.moment(at_ns).endswith(".123 UTC")
    assert theme.moment(at_ns, "Asia/Tokyo").endswith("JST")


def test_unknown_states_are_drawn_last_and_never_raise() -> None:
    assert theme.in_order({"zebra", "queued", "unknown"}) == ["unknown", "queued", "zebra"]
    assert theme.meaning("zebra") is theme.OTHER


def test_no_two_states_share_a_colour_and_pattern() -> None:
    for mode in ("light", "dark"):
        looks = [(of.colour(mode), of.pattern) for of in theme.STATES.values()]
        assert len(set(looks)) == len(looks)


def test_idle_that_looks_alike_in_grey_carries_a_pattern() -> None:
    for state in ("tail_bubble", "ramp_up", "starved_gap", "unallocated"):
        assert theme.STATES[state].pattern
