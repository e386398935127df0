"""How is a value that JSON has no word for written, so that no digit of it is lost?

Integers of 64 bits (nanoseconds) and floats are orjson's own, exact. A DECIMAL, and an integer that
needs more than 64 bits, is a number where a double gives its digits back, else text of them.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import orjson


def worded(value: Any) -> Any:
    """For orjson's `default`: decimals as numbers or text, anything else as text."""
    if not isinstance(value, Decimal):
        return str(value)
    digits = format(value, "f")
    is_held = value.is_finite() and Decimal(repr(float(value))) == value
    return orjson.Fragment(digits) if is_held else digits


def json_of(value: Any) -> bytes:
    """One value as JSON."""
    return orjson.dumps(value, default=worded)
