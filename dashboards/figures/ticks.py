"""Where along an axis do numbers stand, and how are they written so that no two read alike?

Pure. Steps are 1, 2 or 5 times a power of ten; what is counted has none between two numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

MOST: Final = 9
"""Steps of an axis."""
FEW: Final = 3
"""With fewer marks at 1, 2 and 5 of its decades an axis is told by even steps."""

ONE: Final = 1e-6
"""A range this small beside its values is one value."""
ROOM: Final = 0.1
"""The share of one value, or of a range, that is drawn to both its sides."""


def is_one(low: float, high: float) -> bool:
    """Are both as good as one value?"""
    return high - low <= low * ONE


def round_step(span: float, most: int = MOST) -> float:
    """The smallest round step of which at most *most* make *span*."""
    if not span > 0:
        return 1.0
    exponent = math.floor(math.log10(span / most))
    steps = (factor * 10.0 ** (exponent + up) for up in (0, 1) for factor in (1, 2, 5))
    return next(step for step in steps if span / step <= most * (1 + 1e-9))


def even(low: float, high: float, *, whole: bool = False, most: int = MOST) -> list[float]:
    """Multiples of a round step from *low* to *high*; of a count its step is 1 or more."""
    step = round_step(high - low, most)
    step = max(step, 1.0) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, -math.floor(math.log10(step)))
    return [round(number * step, digits) for number in range(first, last + 1)]


def logarithmic(low: float, high: float, *, whole: bool = False) -> list[float]:
    """1, 2 and 5 of each decade, the decades alone where there are many, even steps where few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    values = [factor * 10.0**decade for decade in range(first, last + 1) for factor in factors]
    values = [value for value in values if value >= 1 or not whole]
    if sum(low <= value <= high for value in values) >= FEW:
        return [value for value in values if low * 0.7 <= value <= high * 1.5]
    # All lengths may be one, or as good as one.
    room = low * ROOM if is_one(low, high) else (high - low) * ROOM
    return even(low - room, high + room, whole=whole, most=MOST - 1) or [low]


def words(values: Sequence[float], said: Callable[[float], str], unit: str = "") -> list[str]:
    """*said* of each; with as many digits as tell them apart where that reads alike."""
    told = [said(value) for value in values]
    if len(set(told)) == len(told):
        return told
    near = min((b - a for a, b in pairwise(sorted(set(values)))), default=1.0)
    digits = max(0, -math.floor(math.log10(near)))
    return [f"{value:,.{digits}f}{unit}" for value in values]
