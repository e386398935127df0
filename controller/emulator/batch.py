"""Who decodes together, and who of them is done first?

An iteration adds one token to everyone, so for the whole batch it is one addition: a request
remembers at which iteration it joined and at which it will end. Joining, leaving and asking cost a
logarithm of the batch, not the batch.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

import numpy as np

from heddle.controller.emulator.cache import Ids
from heddle.controller.emulator.request import (
    NO_IDS,
    Request,
    Tokens,
    content_salt,
    output_ids,
    target_of,
)
from heddle.controller.emulator.span import Span
from heddle.controller.emulator.tree import Node

# schedule_policy.py: output promised to a request counts at most this much when admitting.
CLIP_TOKENS: Final = 4096


class Batch:
    """The running requests, in the order they joined."""

    __slots__ = (
        "_ends", "_joins", "_long", "_longs", "_members", "_short", "_short_ends", "contexts",
        "done",
    )  # fmt: skip

    def __init__(self) -> None:
        self.done = 0
        """Iterations this batch has made since the engine started."""
        self.contexts = 0
        """Sum of the members' contexts."""
        self._members: dict[Live, None] = {}
        self._joins = 0
        self._ends: list[tuple[int, int, Live]] = []
        self._longs: list[tuple[int, int, Live]] = []
        """By the iteration at which they get within CLIP_TOKENS of their end."""
        self._long = self._short = self._short_ends = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Live]:
        return iter(self._members)

    def add(self, live: Live) -> None:
        """It decodes from the next iteration on."""
        self._joins += 1
        live.join(self, self._joins)
        self._members[live] = None
        self.contexts += len(live.request.ids) + live.out
        heapq.heappush(self._ends, (live.end_at, live.joined, live))
        if live.end_at - self.done > CLIP_TOKENS:
            self._long += 1
            heapq.heappush(self._longs, (live.end_at - CLIP_TOKENS, live.joined, live))
        else:
            self._short += 1
            self._short_ends += live.end_at

    def remove(self, live: Live) -> None:
        """It leaves with what it has."""
        self._shorten()
        del self._members[live]
        self.contexts -= len(live.request.ids) + live.out
        if live.end_at - self.done > CLIP_TOKENS:
            self._long -= 1
        else:
            self._short -= 1
            self._short_ends -= live.end_at
        live.part()

    def step(self, iterations: int) -> None:
        """Everyone gets that many tokens."""
        self.done += iterations
        self.contexts += iterations * len(self._members)

    def least_remaining(self) -> int:
        """Iterations until the first is done; the batch is not empty."""
        ends = self._ends
        while ends[0][2].joined != ends[0][1]:
            heapq.heappop(ends)
        return ends[0][0] - self.done

    def ended(self) -> list[Live]:
        """Those that have all their tokens, in the order they joined."""
        ends = self._ends
        found: list[tuple[int, Live]] = []
        while ends and (ends[0][2].joined != ends[0][1] or ends[0][0] <= self.done):
            _, joined, live = heapq.heappop(ends)
            if live.joined == joined:
                found.append((joined, live))
        found.sort(key=lambda pair: pair[0])
        return [live for _, live in found]

    def promised(self) -> int:
        """Sum of what each still has to come, at most CLIP_TOKENS each."""
        self._shorten()
        return self._short_ends - self._short * self.done + CLIP_TOKENS * self._long

    def _shorten(self) -> None:
        longs = self._longs
        while longs and (longs[0][2].joined != longs[0][1] or longs[0][0] <= self.done):
            _, joined, live = heapq.heappop(longs)
            if live.joined == joined:
                self._long -= 1
                self._short += 1
                self._short_ends += live.end_at


class Live:
    """A request inside the engine. KV it owns = `held` (locked in the tree) + `private`."""

    __slots__ = (
        "aborting", "arrival_s", "batch", "cached", "done", "end_at", "entry_s", "held", "ids",
        "joined", "node", "order", "prefill_end_s", "queue_s", "queued_at_s", "request",
        "retractions", "salt", "sequence", "settled_out", "settled_private", "since", "stops",
        "target",
    )  # fmt: skip

    def __init__(self, request: Request, target: int, now_s: float, sequence: int) -> None:
        self.request = request
        self.ids: Tokens = request.ids
        """Tokens to hold before the next decode: prompt, and outputs after a retraction."""
        self.salt = 0 if isinstance(request.ids, Span) else content_salt(request.ids, request.salt)
        self.target, self.stops = target_of(request, self.salt, target)
        self.sequence = sequence
        self.order: tuple[int, float, int] = (0, now_s, sequence)
        self.arrival_s = self.queued_at_s = now_s
        self.queue_s = 0.0
        self.entry_s: float | None = None
        self.prefill_end_s: float | None = None
        self.settled_out = self.settled_private = self.done = self.held = self.retractions = 0
        self.cached: int | None = None
        self.node: Node | None = None
        self.aborting = False
        self.batch: Batch | None = None
        self.joined = self.since = self.end_at = 0

    def join(self, batch: Batch, joined: int) -> None:
        """Decode with that batch; `joined` numbers the members."""
        self.batch, self.joined, self.since = batch, joined, batch.done
        self.end_at = batch.done + self.remaining

    def part(self) -> None:
        """Keep what was decoded."""
        self.settled_out, self.settled_private = self.out, self.private
        self.batch, self.joined = None, 0

    @property
    def out(self) -> int:
        """Output tokens so far."""
        batch = self.batch
        return self.settled_out if batch is None else self.settled_out + batch.done - self.since

    @property
    def private(self) -> int:
        """KV tokens of its own, outside the tree."""
        batch, own = self.batch, self.settled_private
        return own if batch is None else own + batch.done - self.since

    @property
    def remaining(self) -> int:
        return max(self.target - self.out, 0)

    @property
    def kv_tokens(self) -> int:
        return self.held + self.private

    def own(self, tokens: int) -> None:
        """Set the KV of its own, as of now."""
        batch = self.batch
        self.settled_private = tokens if batch is None else tokens - (batch.done - self.since)

    def tokens(self, out: int | None = None) -> Tokens:
        """Prompt and that many outputs."""
        ids = self.request.ids
        if isinstance(ids, Span):
            return ids.to(ids.size + (self.out if out is None else out))
        return np.concatenate([ids, self.output(out)])

    def output(self, out: int | None = None) -> Ids:
        if isinstance(self.request.ids, Span):
            return NO_IDS
        count = self.out if out is None else out
        return output_ids(self.salt, len(self.request.ids), count, text=self.request.text)
