"""Which trajectory does a request that names none go on with?

The one of whose contexts (prompt and output ids, or messages and the answer to them) it goes on
from; the longest wins. Two trajectories with the same longest context are told apart by the ids of
their tool calls, else neither is taken. A chat whose client changed the answer beyond recognition
goes on from what was asked before it. Every trajectory keeps its first context and its last PLACES:
branches of parallel tools go on from one that is no longer the newest, and an agent that drops its
history goes back to an old one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

from heddle.controller.dataplane.spoken import call_ids, plain

KEPT: Final = 20_000
PLACES: Final = 16
"""Two a chat step: what was asked, and that with its answer."""
BLOCK: Final = 4096
"""Bytes of the id array that one link of the chain covers."""
_SPACE: Final = b" \t\r\n"
Key = tuple[str, int, bytes]


@dataclass(frozen=True, slots=True)
class Line:
    """One trajectory's context as a step left it, and where it lives."""

    run: str
    trajectory: str
    step: int
    worker: str
    length: int
    tail: bytes = b""
    calls: frozenset[str] = frozenset()
    """Ids of the tool calls that the answer made."""
    ended_ns: int = 0
    group: str | None = None


class Lineage:
    """Contexts of the trajectories that did not say who they are."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._lines: dict[Key, list[Line]] = {}
        self._of: OrderedDict[tuple[str, str], list[tuple[Key, Line]]] = OrderedDict()

    def find(self, run: str, ids: bytes | None, messages: Any) -> list[Line]:
        """One line a trajectory that this goes on from the furthest; several: ambiguous."""
        if ids is not None:
            found = self._by_ids(ids.translate(None, _SPACE))
        else:
            found = self._by_messages(messages)
        furthest = _furthest(run, found)
        if len({line.trajectory for line in furthest}) > 1 and isinstance(messages, list):
            furthest = _same_calls(furthest, messages) or furthest
        newest: dict[str, Line] = {}
        for line in furthest:
            known = newest.get(line.trajectory)
            newest[line.trajectory] = line if known is None or line.step > known.step else known
        return list(newest.values())

    def latest(self, run: str, trajectory: str) -> int:
        """The number of its newest step; -1 for one that is not known."""
        return max((line.step for _, line in self._of.get((run, trajectory), ())), default=-1)

    def note(self, line: Line, ids: bytes | None, messages: Any, answer: Any = None) -> None:
        """A step ended: this is a context of the trajectory now."""
        if ids is not None:
            plain_ids = ids.translate(None, _SPACE)
            links = _links(plain_ids)
            key: Key = ("ids", len(links) - 1, links[-1])
            tail = plain_ids[(len(links) - 1) * BLOCK :]
            known = replace(line, length=len(plain_ids), tail=tail)
        elif isinstance(messages, list) and messages:
            said: dict[str, Any] = dict(answer) if isinstance(answer, Mapping) else {}
            chain = _chain([*messages, {**said, "role": "assistant"}])
            count, calls = len(messages), call_ids(answer)
            self._keep(("asked", count, chain[-2]), replace(line, length=count, calls=calls))
            key = ("messages", count + 1, chain[-1])
            known = replace(line, length=count + 1, calls=calls)
        else:
            return
        self._keep(key, known)

    def _keep(self, key: Key, line: Line) -> None:
        places = self._of.setdefault((line.run, line.trajectory), [])
        self._of.move_to_end((line.run, line.trajectory))
        places.append((key, line))
        self._lines.setdefault(key, []).append(line)
        if len(places) > PLACES:
            self._drop(*places.pop(2))
        while len(self._of) > self._kept:
            for place in self._of.popitem(last=False)[1]:
                self._drop(*place)

    def _drop(self, key: Key, line: Line) -> None:
        self._lines[key].remove(line)
        if not self._lines[key]:
            del self._lines[key]

    def _by_ids(self, plain_ids: bytes) -> list[Line]:
        found: list[Line] = []
        for number, link in enumerate(_links(plain_ids)):
            for line in self._lines.get(("ids", number, link), ()):
                # A number must not go on where the context ended: 1,2 is no prefix of 1,23.
                if plain_ids.startswith(line.tail + b",", number * BLOCK):
                    found.append(line)
        return found

    def _by_messages(self, messages: Any) -> list[Line]:
        if not isinstance(messages, list):
            return []
        known: list[Any] = messages
        chain = list(enumerate(_chain(known)[:-1], start=1))

        def at(kind: str) -> list[Line]:
            return [line for n, link in chain for line in self._lines.get((kind, n, link), ())]

        return at("messages") or at("asked")


def _furthest(run: str, lines: Sequence[Line]) -> list[Line]:
    mine = [line for line in lines if line.run == run]
    longest = max((line.length for line in mine), default=0)
    return [line for line in mine if line.length == longest]


def prompt_group(ids: bytes | None, messages: Any) -> str | None:
    """The name of everyone who begins with exactly this prompt; None where there is none."""
    if ids is not None:
        digest = blake2b(ids.translate(None, _SPACE), digest_size=6)
    elif isinstance(messages, list) and messages:
        known: list[Any] = messages
        digest = blake2b(_chain(known)[-1], digest_size=6)
    else:
        return None
    return f"prompt-{digest.hexdigest()}"


def _same_calls(lines: Sequence[Line], messages: Sequence[Any]) -> list[Line]:
    """Those whose last answer made the tool calls that the request sends back."""
    sent = frozenset[str]().union(*map(call_ids, messages))
    return [line for line in lines if line.calls & sent]


def _links(plain_ids: bytes) -> list[bytes]:
    """The hash before each block; the last one is before the tail."""
    links = [b""]
    for at in range(0, len(plain_ids) - BLOCK + 1, BLOCK):
        links.append(blake2b(links[-1] + plain_ids[at : at + BLOCK], digest_size=16).digest())
    return links


def _chain(messages: Sequence[Any]) -> list[bytes]:
    """The hash after each message."""
    chain, link = list[bytes](), b""
    for message in messages:
        link = blake2b(link + plain(message), digest_size=16).digest()
        chain.append(link)
    return chain
