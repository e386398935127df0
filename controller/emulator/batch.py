"""Who decodes together, and who of them is done first?

An iteration adds one token to everyone, so for the whole batch it is one addition: a request
remembers at which iteration it joined and at which it will end. Joining, leaving and asking cost a
logarithm of the batch, not the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from operator import attrgetter
from typing import Final

import numpy as np

from heddle.controller.emulator.cache import Ids
from heddle.controller.emulator.request import (
    NO_IDS,
    Finished,
    Lap,
    Reason,
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
_finished: Final = Finished._make
_JOINED: Final = attrgetter("joined")


class Batch:
    """The running requests, in the order they joined."""

    __slots__ = (
        "_ends", "_joins", "_long", "_longs", "_members", "_short", "_short_ends", "contexts",
        "done", "size",
    )  # fmt: skip

    def __init__(self) -> None:
        self.done = 0
        """Iterations this batch has made since the engine started."""
        self.size = self.contexts = 0
        """How many they are, and the sum of their contexts."""
        self._members: dict[Live, None] = {}
        self._joins = 0
        self._ends: list[tuple[int, int, Live]] = []
        self._longs: list[tuple[int, int, Live]] = []
        """By the iteration at which they get within CLIP_TOKENS of their end."""
        self._long = self._short = self._short_ends = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Live]:
        return iter(self._members)

    def add(self, live: Live) -> None:
        """It decodes from the next iteration on."""
        self._joins = joined = self._joins + 1
        done, end_at = self.done, live.join(self, joined)
        self._members[live] = None
        self.size += 1
        self.contexts += live.prompt_tokens + live.settled_out
        heappush(self._ends, (end_at, joined, live))
        if end_at - done > CLIP_TOKENS:
            self._long += 1
            heappush(self._longs, (end_at - CLIP_TOKENS, joined, live))
        else:
            self._short += 1
            self._short_ends += end_at

    def remove(self, live: Live) -> None:
        """It leaves with what it has."""
        if self._longs:
            self._shorten()
        del self._members[live]
        self.size -= 1
        done, end_at = self.done, live.end_at
        self.contexts -= live.prompt_tokens + live.settled_out + done - live.since
        if end_at - done > CLIP_TOKENS:
            self._long -= 1
        else:
            self._short -= 1
            self._short_ends -= end_at
        live.part()

    def step(self, iterations: int) -> None:
        """Everyone gets that many tokens."""
        self.done += iterations
        self.contexts += iterations * self.size

    def least_remaining(self) -> int:
        """Iterations until the first is done; the batch is not empty."""
        ends = self._ends
        while ends[0][2].joined != ends[0][1]:
            heappop(ends)
        return ends[0][0] - self.done

    def ended(self) -> list[Live]:
        """Those that have all their tokens, in the order they joined."""
        ends, done, found = self._ends, self.done, list[Live]()
        while ends:
            end_at, joined, live = ends[0]
            if live.joined == joined:
                if end_at > done:
                    break
                found.append(live)
            heappop(ends)
        if len(found) > 1:
            found.sort(key=_JOINED)
        return found

    def promised(self) -> int:
        """Sum of what each still has to come, at most CLIP_TOKENS each."""
        if self._longs:
            self._shorten()
        return self._short_ends - self._short * self.done + CLIP_TOKENS * self._long

    def _shorten(self) -> None:
        longs = self._longs
        while longs and (longs[0][2].joined != longs[0][1] or longs[0][0] <= self.done):
            _, joined, live = heappop(longs)
            if live.joined == joined:
                self._long -= 1
                self._short += 1
                self._short_ends += live.end_at


class Live:
    """A request inside the engine. KV it owns = `held` (locked in the tree) + `private`."""

    __slots__ = (
        "aborting", "arrival_s", "batch", "cached", "done", "end_at", "entered_s", "entry_s",
        "held", "host_tokens", "ids", "joined", "laps", "made", "node", "order", "prefill_end_s",
        "prefilled_s", "prompt_tokens", "queue_s", "queued_at_s", "request", "retractions",
        "salt", "sequence", "settled_out", "settled_private", "since", "size", "stops", "target",
    )  # fmt: skip

    def __init__(self, request: Request, target: int, now_s: float, sequence: int) -> None:
        self.request = request
        self.ids: Tokens = request.ids
        """Tokens to hold before the next decode: prompt, and outputs after a retraction."""
        self.size = self.prompt_tokens = len(request.ids)
        """Of `ids`, and of the request's."""
        self.made: Ids = NO_IDS
        """Of its outputs, as many as somebody asked for."""
        self.salt = 0 if isinstance(request.ids, Span) else content_salt(request.ids, request.salt)
        self.target, self.stops = target, False
        if not request.ignore_eos:
            self.target, self.stops = target_of(request, self.salt, target)
        self.sequence = sequence
        self.order: tuple[int, float, int] = (0, now_s, sequence)
        self.arrival_s = self.queued_at_s = now_s
        self.queue_s = 0.0
        self.entry_s: float | None = None
        self.prefill_end_s: float | None = None
        self.entered_s: float | None = None
        self.prefilled_s: float | None = None
        """Since it was queued last; the two above since it arrived."""
        self.laps: tuple[Lap, ...] = ()
        self.settled_out = self.settled_private = self.done = self.held = self.retractions = 0
        self.cached: int | None = None
        self.host_tokens = 0
        self.node: Node | None = None
        self.aborting = False
        self.batch: Batch | None = None
        self.joined = self.since = self.end_at = 0

    def join(self, batch: Batch, joined: int) -> int:
        """Decode with that batch until the iteration it says; `joined` numbers the members."""
        self.batch, self.joined, self.since = batch, joined, batch.done
        left = self.target - self.settled_out
        self.end_at = end_at = batch.done + (left if left > 0 else 0)
        return end_at

    def part(self) -> None:
        """Keep what was decoded."""
        batch = self.batch
        if batch is not None:
            decoded = batch.done - self.since
            self.settled_out += decoded
            self.settled_private += decoded
            self.batch = None
        self.joined = 0

    def restart(self, now_s: float) -> None:
        """A retraction: its outputs are prefilled like a prompt next time."""
        self.retractions += 1
        self.laps = self.all_laps(now_s)
        self.entered_s = self.prefilled_s = None
        self.ids = self.tokens()
        self.size = len(self.ids)

    def all_laps(self, now_s: float) -> tuple[Lap, ...]:
        """The present one ends now."""
        return (*self.laps, (self.queued_at_s, self.entered_s, self.prefilled_s, now_s))

    def ended(self, at_s: float, sequence: int, reason: Reason, weight_version: str) -> Finished:
        """What is said of it when it is over."""
        # In the order of its fields: by name it costs three times as much, and every step does.
        return _finished(
            (
                self.request.rid,
                at_s,
                sequence,
                reason,
                self.output(),
                self.settled_out,
                self.prompt_tokens,
                self.cached or 0,
                self.host_tokens,
                self.arrival_s,
                self.queue_s,
                self.entry_s,
                self.prefill_end_s,
                self.retractions,
                weight_version,
                self.all_laps(at_s),
            )
        )

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
    def promised(self) -> int:
        """What is set aside for the rest of its output."""
        left = self.target - self.out
        return CLIP_TOKENS if left > CLIP_TOKENS else left if left > 0 else 0

    @property
    def kv_tokens(self) -> int:
        return self.held + self.private

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
        # The cache and the reply ask for the same ones: 4,000 take 0.1 ms.
        if len(self.made) < count:
            self.made = output_ids(self.salt, self.prompt_tokens, count, text=self.request.text)
        return self.made[:count]
