"""What does it take to bring a context to another worker?

A prefill there; or a fetch, where both engines keep their pages in one storage and are equal in
degree (a page is what one rank holds of a token), at the pace at which fetches were seen to go.
Until one was seen it counts as a prefill.
"""

from __future__ import annotations

import numpy as np

from heddle.controller.core.draws import Floats
from heddle.controller.core.types import Fetches, Worker


def fetch_token_s(source: Worker, target: Worker, seen: Fetches) -> float | None:
    """Seconds a token that the target reads what the source wrote; None where it cannot."""
    shared = source.storage and source.storage == target.storage
    if not shared or source.degree != target.degree:
        return None
    return seen.get((target.storage, target.degree))


def carried_s(tokens: float, source: Worker, target: Worker, seen: Fetches) -> float:
    """Seconds until a context of so many tokens is there."""
    prefill_s, token_s = target.latency.prefill_s(tokens), fetch_token_s(source, target, seen)
    return prefill_s if token_s is None else min(prefill_s, token_s * tokens)


def carried_many_s(prefill_s: Floats, tokens: Floats, token_s: float | None) -> Floats:
    """The same of many, given what their prefills take."""
    return prefill_s if token_s is None else np.minimum(prefill_s, token_s * tokens)
