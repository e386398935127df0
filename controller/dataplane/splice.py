"""How do a few keys get into a request body without re-dumping 64,000 token ids?

The flat `input_ids` array is cut out by finding its bytes, the small rest is parsed, changed and
dumped, and the array is put back as it was: whether it holds numbers is for the engine to say, that
it holds no text, array or object is seen here. What does not look like that is parsed in full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson

from heddle.controller.errors import BadRequest

_KEY: Final = b'"input_ids"'
LONG: Final = 4096
"""Bytes from which numpy counts commas: 5 us for 8,000 ids where bytes.count takes 27."""
_SPACE: Final = b" \t\r\n"
_COMMA: Final = ord(",")
MAX_BODY_BYTES: Final = 64 << 20


@dataclass(slots=True)
class Body:
    """A parsed head, and the bytes inside the flat `input_ids` array if there is one."""

    head: dict[str, Any]
    ids: bytes | None = None

    @property
    def prompt_tokens(self) -> int:
        """Token ids in the request; 0 when it carries text."""
        if self.ids is None or not self.ids.strip():
            return 0
        if len(self.ids) >= LONG:
            commas = np.frombuffer(self.ids, dtype=np.uint8) == _COMMA
            return int(np.count_nonzero(commas)) + 1
        return self.ids.count(b",") + 1

    def dump(self, injected: Mapping[str, Any]) -> bytes:
        """The request with those keys set; everything else as it came."""
        rest = orjson.dumps({**self.head, **injected})
        if self.ids is None:
            return rest
        # One copy of the ids: each `+` would make another, 3 us for 8,000 of them.
        between = b"]," if len(rest) > 2 else b"]"
        return b"".join((b'{"input_ids":[', self.ids, between, rest[1:]))


def split(raw: bytes) -> Body:
    """Take a JSON object apart; BadRequest with one sentence when it is none."""
    span = _flat_array(raw)
    if span is not None:
        start, end = span
        head = _parse(raw[:start] + b"[]" + raw[end:])
        # Only the top-level key may be cut; anywhere else it is part of something unknown.
        if head.get("input_ids") == []:
            del head["input_ids"]
            return Body(head, raw[start + 1 : end - 1])
    head = _parse(raw)
    ids = head.get("input_ids")
    if isinstance(ids, list) and all(type(i) is int for i in ids):
        del head["input_ids"]
        return Body(head, orjson.dumps(ids)[1:-1])
    return Body(head)


def _flat_array(raw: bytes) -> tuple[int, int] | None:
    """Where the one `input_ids` array of plain numbers begins and ends, brackets included."""
    key = raw.find(_KEY)
    if key < 0:
        return None
    at = _skip(raw, key + len(_KEY))
    if raw[at : at + 1] != b":":
        return None
    start = _skip(raw, at + 1)
    end = raw.find(b"]", start) + 1
    if raw[start : start + 1] != b"[" or end == 0:
        return None
    # Each of these is one pass of memchr; a table of allowed bytes took 36 us for 8,000 ids.
    find, inside = raw.find, start + 1
    nested = (
        find(b'"', inside, end) >= 0
        or find(b"[", inside, end) >= 0
        or find(b"{", inside, end) >= 0
        or find(b"}", inside, end) >= 0
    )
    return None if nested or find(_KEY, end) >= 0 else (start, end)


def _skip(raw: bytes, at: int) -> int:
    while raw[at : at + 1] and raw[at] in _SPACE:
        at += 1
    return at


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        found: Any = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        message = f"the body is not JSON: {error}"
        raise BadRequest(message) from error
    if not isinstance(found, dict):
        message = f"the body must be a JSON object, not {type(found).__name__}"
        raise BadRequest(message)
    return found
