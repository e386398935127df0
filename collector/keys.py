"""Has this span been stored already, and when did it end?

An index in memory: one 64-bit key and the end of every stored span, 16 bytes each (80 MB for 5
million), in sorted runs that double in size. It spares each commit a join with all that is stored.
Keys mix span and trace id: those are random or hashed already, so two of 5 million spans share a
key with a chance of about one in a million.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

UNKNOWN: Final = -2
"""`ends` of a key that is not stored; an open end is -1."""

# Odd, so each product keeps all 64 bits; different, so ids of repeated halves do not cancel out.
_MIX: Final = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], dtype=np.uint64
)

_NIBBLE: Final = np.zeros(256, np.uint8)
_NIBBLE[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16, dtype=np.uint8)

Ends = NDArray[np.int64]
Hashes = NDArray[np.uint64]


def hashes(trace_ids: Sequence[str], span_ids: Sequence[str]) -> Hashes:
    """One 64-bit key per span."""
    return _mixed(_words(trace_ids, 2), _words(span_ids, 1))


def hashes_of(table: Any) -> Hashes:
    """The same of a table's columns trace_id and span_id, read as Arrow holds them."""
    if not table.num_rows:
        return np.zeros(0, np.uint64)
    traces, spans = _bytes(table, "trace_id", 32), _bytes(table, "span_id", 16)
    return _mixed(_digits(traces), _digits(spans))


def _mixed(traces: Hashes, spans: Hashes) -> Hashes:
    return traces[:, 0] * _MIX[0] ^ traces[:, 1] * _MIX[1] ^ spans[:, 0] * _MIX[2]


def _bytes(table: Any, column: str, width: int) -> NDArray[np.uint8]:
    """The characters of a string column whose values all have that many, one row each."""
    whole = table.column(column)
    array = whole.combine_chunks() if hasattr(whole, "combine_chunks") else whole
    text = np.frombuffer(array.buffers()[2], np.uint8)
    # An array may be a slice of its buffers; all ids being as wide, its first one says where.
    begin = array.offset * width
    return text[begin : begin + len(array) * width].reshape(-1, width)


def _digits(text: NDArray[np.uint8]) -> Hashes:
    """Hex digits, sixteen a word."""
    nibbles = _NIBBLE[text]
    joined = (nibbles[:, 0::2] << 4) | nibbles[:, 1::2]
    return np.ascontiguousarray(joined).view(">u8").astype(np.uint64)


def _words(ids: Sequence[str], words: int) -> Hashes:
    joined = np.frombuffer(bytes.fromhex("".join(ids)), dtype=">u8")
    return joined.astype(np.uint64).reshape(-1, words)


class Keys:
    """Sorted runs of keys; a later `put` of a key shadows the earlier one."""

    def __init__(self) -> None:
        self._runs: list[tuple[Hashes, Ends]] = []

    def __len__(self) -> int:
        return sum(len(keys) for keys, _ in self._runs)

    def ends(self, keys: Hashes) -> Ends:
        """The stored end of each key: UNKNOWN if not stored, -1 if stored without one."""
        found = np.full(len(keys), UNKNOWN, dtype=np.int64)
        for known, ends in self._runs:
            at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            hit = known[at] == keys
            found[hit] = np.maximum(found[hit], ends[at[hit]])
        return found

    def put(self, keys: Hashes, ends: Ends) -> None:
        """Remember these; of equal keys the latest end counts."""
        if not len(keys):
            return
        self._runs.append(_sorted(keys, ends))
        while len(self._runs) > 1 and len(self._runs[-2][0]) <= 2 * len(self._runs[-1][0]):
            last, before = self._runs.pop(), self._runs.pop()
            both = np.concatenate([before[0], last[0]]), np.concatenate([before[1], last[1]])
            self._runs.append(_sorted(*both))

    def drop(self, keys: Hashes) -> None:
        """Forget these."""
        for at, (known, ends) in enumerate(self._runs):
            stays = ~np.isin(known, keys)
            self._runs[at] = known[stays], ends[stays]
        self._runs = [run for run in self._runs if len(run[0])]


def _sorted(keys: Hashes, ends: Ends) -> tuple[Hashes, Ends]:
    # Stable: on two sorted runs one after the other it merges, 5 million in 0.1 s.
    order = np.argsort(keys, kind="stable")
    keys, ends = keys[order], ends[order]
    first = np.append(True, keys[1:] != keys[:-1])
    if first.all():
        return keys, ends
    return keys[first], np.maximum.reduceat(ends, np.flatnonzero(first))
