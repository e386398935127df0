"""How is a decode law written in one line, in a filter, an attribute or a flag?

As `degree:a,b,c`, milliseconds of decode(B, ctx) = a + b*B + c*B*ctx with ctx in thousands of
tokens; several are joined by a semicolon.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Final

from heddle.collector.errors import QueryRefused
from heddle.collector.sums import Law

_EXAMPLE: Final = "1:8.2,0.016,0.037"


def parse_laws(texts: Iterable[str]) -> dict[int, Law]:
    """Laws by degree; QueryRefused when a text is no law."""
    parts = [part for text in texts for part in text.split(";") if part.strip()]
    return dict(_law(part) for part in parts)


def spell_laws(laws: Mapping[int, Law]) -> str:
    """The text that parse_laws reads."""
    return ";".join(
        f"{degree}:{law.base_ns_per_token / 1e6:.9g},{law.request_ns_per_token / 1e6:.9g},"
        f"{law.context_ns_per_token / 1e3:.9g}"
        for degree, law in sorted(laws.items())
    )


def _law(text: str) -> tuple[int, Law]:
    degree, _, numbers = text.strip().partition(":")
    try:
        a_ms, b_ms, c_ms = (float(number) for number in numbers.split(","))
        if int(degree) < 1 or not all(isfinite(x) and x >= 0 for x in (a_ms, b_ms, c_ms)):
            raise ValueError
    except ValueError:
        message = f"{text.strip()!r} is no decode law; say degree:a,b,c in ms, as {_EXAMPLE}"
        raise QueryRefused(message) from None
    return int(degree), Law(a_ms * 1e6, b_ms * 1e6, c_ms * 1e3)
