"""Which trajectory does a request that names none go on with?

The one whose context (prompt and output ids, or messages and an answer) is a true prefix of it; the
longest wins. Two trajectories with the same longest context are ambiguous and neither is taken.
Contexts are kept as hash chains and a short tail, the last KEPT trajectories of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import orjson

KEPT: Final = 20_000
BLOCK: Final = 4096
"""Bytes of the id array that one link of the chain covers."""
_SPACE: Final = b" \t\r\n"
Key = tuple[str, int, bytes]


@dataclass(frozen=True, slots=True)
class Line:
    """One trajectory's context as it ended, and where it lives."""

    run: str
    trajectory: str
    step: int
    worker: str
    length: int
    tail: bytes = b""


class Lineage:
    """Contexts of the trajectories that did not say who they are."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._lines: dict[Key, list[Line]] = {}
        self._of: OrderedDict[tuple[str, str], tuple[Key, Line]] = OrderedDict()

    def find(self, run: str, ids: bytes | None, messages: Any) -> list[Line]:
        """The trajectories with the longest context that this goes on from; several: ambiguous."""
        if ids is not None:
            found = self._by_ids(ids.translate(None, _SPACE))
        else:
            found = self._by_messages(messages)
        mine = [line for line in found if line.run == run]
        longest = max((line.length for line in mine), default=0)
        return [line for line in mine if line.length == longest]

    def note(self, line: Line, ids: bytes | None, messages: Any) -> None:
        """A step ended: this is the trajectory's context now."""
        if ids is not None:
            plain = ids.translate(None, _SPACE)
            links = _links(plain)
            key: Key = ("ids", len(links) - 1, links[-1])
            tail = plain[(len(links) - 1) * BLOCK :]
            known = Line(line.run, line.trajectory, line.step, line.worker, len(plain), tail)
        elif isinstance(messages, list) and messages:
            chain = _chain(messages)
            key = ("messages", len(messages), chain[-1])
            known = Line(line.run, line.trajectory, line.step, line.worker, len(messages))
        else:
            return
        self._forget((line.run, line.trajectory))
        self._lines.setdefault(key, []).append(known)
        self._of[line.run, line.trajectory] = (key, known)
        while len(self._of) > self._kept:
            self._forget(next(iter(self._of)))

    def _forget(self, whose: tuple[str, str]) -> None:
        before = self._of.pop(whose, None)
        if before is None:
            return
        key, line = before
        self._lines[key].remove(line)
        if not self._lines[key]:
            del self._lines[key]

    def _by_ids(self, plain: bytes) -> list[Line]:
        found: list[Line] = []
        for number, link in enumerate(_links(plain)):
            for line in self._lines.get(("ids", number, link), ()):
                # A number must not go on where the context ended: 1,2 is no prefix of 1,23.
                if plain.startswith(line.tail + b",", number * BLOCK):
                    found.append(line)
        return found

    def _by_messages(self, messages: Any) -> list[Line]:
        if not isinstance(messages, list):
            return []
        return [
            line
            for count, link in enumerate(_chain(messages)[:-1], start=1)
            if _is_answer(messages[count])
            for line in self._lines.get(("messages", count, link), ())
        ]


def _links(plain: bytes) -> list[bytes]:
    """The hash before each block; the last one is before the tail."""
    links = [b""]
    for at in range(0, len(plain) - BLOCK + 1, BLOCK):
        links.append(blake2b(links[-1] + plain[at : at + BLOCK], digest_size=16).digest())
    return links


def _chain(messages: Sequence[Any]) -> list[bytes]:
    """The hash after each message."""
    chain, link = list[bytes](), b""
    for message in messages:
        raw = orjson.dumps(message, option=orjson.OPT_SORT_KEYS)
        link = blake2b(link + raw, digest_size=16).digest()
        chain.append(link)
    return chain


def _is_answer(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "assistant"
