"""Requests that hypothesis draws for an emulated engine and the slow one beside it."""

from __future__ import annotations

from hypothesis import strategies as st

Drawn = tuple[float, int, int, int, int]
"""Arrival in seconds, whose prompt, prompt tokens, output tokens, priority."""


def requests(
    arrival_s: tuple[float, float],
    whose: tuple[int, int],
    prompt: tuple[int, int],
    output: tuple[int, int],
    count: tuple[int, int],
) -> st.SearchStrategy[list[Drawn]]:
    """So many of them, each within these bounds, of three priorities."""
    one = st.tuples(
        st.floats(*arrival_s), st.integers(*whose), st.integers(*prompt), st.integers(*output),
        st.integers(0, 2),
    )  # fmt: skip
    return st.lists(one, min_size=count[0], max_size=count[1])
