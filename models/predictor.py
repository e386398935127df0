"""Who can be asked how much a trajectory still has to generate?

The protocol every predictor meets, and the one that knows nothing. No torch here or below: the
controller's process imports this module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Protocol

from heddle.models.lognormal import Lognormal
from heddle.models.types import Length, Outlook, Query

DEFAULT_MEDIAN_TOKENS: Final = 1024.0
"""Output tokens of a trajectory nothing is known about: between the medians of tau-bench (654) and
of local software-engineering agents (10,776), nearer the tool-calling ones."""

DEFAULT_SIGMA: Final = 1.0
"""Standard deviation of log tokens that goes with it: p90 is 3.6 times the median."""


class Predictor(Protocol):
    """Answers with remaining output tokens; `version` goes on every span it was used for."""

    @property
    def version(self) -> str: ...

    def predict(self, query: Query) -> Length:
        """Remaining output tokens of one trajectory."""
        ...

    def predict_many(self, queries: Sequence[Query]) -> list[Length]:
        """The same for many, in their order."""
        ...

    def outlook_many(self, queries: Sequence[Query]) -> list[Outlook]:
        """With the steps still to come and the seconds of the tool that runs now."""
        ...


class NoPrediction:
    """The same documented constant for every trajectory at every step: no order follows from it."""

    version = "none"

    def __init__(
        self, median_tokens: float = DEFAULT_MEDIAN_TOKENS, sigma: float = DEFAULT_SIGMA
    ) -> None:
        self._length = Lognormal(math.log(median_tokens), sigma).remaining(0)

    def predict(self, query: Query) -> Length:  # noqa: ARG002 - the constant looks at nothing
        """The constant."""
        return self._length

    def predict_many(self, queries: Sequence[Query]) -> list[Length]:
        """The constant, once a query."""
        return [self._length] * len(queries)

    def outlook_many(self, queries: Sequence[Query]) -> list[Outlook]:
        """The constant, one step and no tool."""
        return [Outlook(self._length, 1.0, 0.0)] * len(queries)
