"""Who runs next on an emulated engine, and who must leave when KV is short?

SGLang's rules: prefill first, the queue in order and in-order break at the first that does not fit,
preemption only when request slots are exhausted, retraction when decode finds no room. It counts
tokens and orders requests; it knows no prices.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any, Final, NamedTuple

from heddle.controller.emulator.batch import Batch, Live
from heddle.controller.emulator.cache import PrefixCache
from heddle.controller.emulator.request import EngineConfig
from heddle.controller.emulator.span import SpanCache
from heddle.controller.emulator.tiers import LOAD_LEAST_TOKENS, HostTier

# Share of the promised output set aside for each running request: 0.7, falling to 0.098 over 600
# iterations (schedule_conservativeness 1), raised again by a retraction.
RATIO_START: Final = 0.7
RATIO_LEAST: Final = 0.098
RATIO_FALL: Final = (RATIO_START - RATIO_LEAST) / 600
# A retraction frees room for this many iterations (SGLANG_RETRACT_DECODE_STEPS).
RETRACT_ITERATIONS: Final = 20


_ORDER: Final = attrgetter("order")


class Part(NamedTuple):
    """`new` tokens of one request in a prefill pass, after `prefix` tokens that are in KV."""

    live: Live
    new: int
    prefix: int


# Every pass makes some: by name, or through __new__ in Python, they cost twice as much.
_part: Final = Part._make


class Scheduler:
    """Queue, running batch and KV accounts of one engine."""

    def __init__(self, config: EngineConfig, capacity: int, cache: PrefixCache | SpanCache) -> None:
        self.config = config
        self.capacity = capacity
        self.cache = cache
        self.waiting: list[Live] = []
        """In the order of admission."""
        self.running = Batch()
        self.chunked: Live | None = None
        self.private_tokens = 0
        self.ratio = RATIO_START
        self.full = False
        self.retracted = 0
        self.preempted = 0
        self.loading_tokens = 0
        """From the host, for the next prefill pass."""
        self.host: HostTier | None = None
        if config.host is not None:
            below = SpanCache() if isinstance(cache, SpanCache) else PrefixCache()
            self.host = HostTier(cache, below, config.host, capacity)
        self._preempts = config.preemption_threshold is not None

    @property
    def available_tokens(self) -> int:
        """Free or evictable."""
        return self.capacity - self.private_tokens - self.cache.locked_tokens

    @property
    def free_tokens(self) -> int:
        return self.available_tokens - self.cache.evictable_tokens

    def queue(self, live: Live, now_s: float) -> None:
        """Put it in line."""
        rank = -live.request.priority if self.config.priority_scheduling else 0
        longest = self.config.schedule_policy == "lof"
        second = -float(live.request.max_new_tokens) if longest else live.arrival_s
        live.order = (rank, second, live.sequence)
        live.queued_at_s = now_s
        if self.waiting:
            insort(self.waiting, live, key=_ORDER)
        else:
            self.waiting.append(live)

    def reorder(self, wanted: Mapping[str, int]) -> int:
        """Other priorities for requests that wait or run; returns how many changed."""
        changed = 0
        for live in (*self.waiting, *self.running):
            priority = wanted.get(live.request.rid)
            if priority is not None and priority != live.request.priority:
                live.request.priority = priority
                live.order = (-priority, *live.order[1:])
                changed += 1
        self.waiting.sort(key=_ORDER)
        return changed

    def take(self, tokens: int) -> None:
        """Make tokens of KV private to a request, evicting what stands in the way."""
        cache = self.cache
        self.private_tokens = own = self.private_tokens + tokens
        over = own + cache.locked_tokens + cache.evictable_tokens - self.capacity
        if over > 0:
            cache.evict(over)

    def admit(self, now_s: float) -> list[Part]:
        """The next prefill pass; empty when decode may go on."""
        parts: list[Part] = []
        if self.chunked is not None:
            parts = self._continue_chunk(self.chunked)
        if self._preempts:
            self.full = False
        if self.full or not self.waiting or self.chunked is not None:
            return parts
        room, promised = self.config.chunk_tokens, 0
        for part in parts:
            room -= part[1]
            promised += part[0].promised
        for live in self._heads():
            if room <= 0 or self.chunked is not None:
                break
            slots = self.config.max_running - self.running.size - len(parts)
            if slots <= 0 and not (self._preempts and self._preempt(live, promised, now_s)):
                self.full = True
                break
            own = live.promised
            new = self._admit_one(live, room, promised + own, now_s)
            if not new:
                self.full = bool(self.running or parts)
                break
            parts.append(_part((live, new, live.held)))
            room -= new
            promised += own
        return parts

    def _heads(self) -> Iterator[Live]:
        """Who is first in line, again and again: who is admitted leaves it."""
        if self._preempts:
            # Whom a preemption puts back in line is not looked at in the same pass.
            yield from list(self.waiting)
            return
        while self.waiting:
            yield self.waiting[0]

    def retract(self, now_s: float) -> None:
        """An iteration does not fit: make room for a few; one request always stays."""
        gone: list[Live] = []
        while len(self.running) > 1 and (
            self.available_tokens < RETRACT_ITERATIONS * len(self.running)
        ):
            victim = min(self.running, key=self._retraction_key)
            self.release(victim, now_s)
            gone.append(victim)
        self.retracted += len(gone)
        decoded = sum(live.out for live in self.running)
        promised = sum(live.target for live in self.running) + 1
        steps = RETRACT_ITERATIONS * len(self.running)
        self.ratio = min(1.0, (decoded + steps) / promised)
        self.full = False

    def decay(self, iterations: int) -> None:
        ratio = self.ratio - RATIO_FALL * iterations
        self.ratio = ratio if ratio > RATIO_LEAST else RATIO_LEAST

    def release(self, live: Live, now_s: float) -> None:
        """Back to the queue: private KV is lost, outputs are kept and prefilled again."""
        self.running.remove(live)
        self.drop(live)
        live.restart(now_s)
        self.queue(live, now_s)

    def release_all(self, now_s: float) -> None:
        """Whatever runs or is half prefilled goes back to the queue."""
        if self.chunked is not None:
            self.running.add(self.chunked)
            self.chunked = None
        for live in list(self.running):
            self.release(live, now_s)
        self.full = False

    def keep(self, live: Live, tokens: int, now_s: float) -> None:
        """Put its first `tokens` into the tree and lock them: private KV becomes shared."""
        ids: Any = live.ids if tokens <= live.size else live.tokens()
        live.node = self.cache.keep(live.node, ids, tokens, now_s)
        live.held = live.done = tokens
        self._give_up(live)
        if self.host is not None and self.host.through:
            self.host.write(ids, tokens, now_s)

    def leave(self, live: Live, tokens: int, now_s: float) -> None:
        """Put its first `tokens` into the tree, where they may go: it is done."""
        ids: Any = live.ids if tokens <= live.size else live.tokens()
        self.cache.leave(live.node, ids, tokens, now_s)
        if self.host is not None and self.host.through:
            self.host.write(ids, tokens, now_s)
        live.node, live.held, live.done = None, 0, 0
        self._give_up(live)

    def drop(self, live: Live) -> None:
        """Give up its locks and its private KV."""
        if live.node is not None:
            self.cache.unlock(live.node)
        live.node, live.held, live.done = None, 0, 0
        self._give_up(live)

    def _give_up(self, live: Live) -> None:
        """Its KV is no longer its own; it is not in the batch."""
        self.private_tokens -= live.settled_private
        live.settled_private = 0

    def _retraction_key(self, live: Live) -> tuple[int, int, int, int]:
        """The first to go has the least output, then the longest prompt, then came last."""
        by_priority = self.config.retraction_policy == "priority"
        rank = live.request.priority if by_priority else 0
        return rank, live.out, -live.prompt_tokens, -live.sequence

    def _continue_chunk(self, live: Live) -> list[Part]:
        new = min(live.size - live.done, self.config.chunk_tokens)
        part = Part(live, new, live.done)
        self.take(new)
        live.settled_private += new
        if live.done + new == live.size:
            self.chunked = None
        return [part]

    def _preempt(self, live: Live, promised: int, now_s: float) -> bool:
        """A request slot and room for it, at the cost of those of least priority."""
        threshold = self.config.preemption_threshold or 0
        ids: Any = live.ids
        held, _ = self.cache.match(ids, live.size - 1, now_s)
        room = self.available_tokens - self._reserved() - promised
        short = live.size - held + live.promised - room
        victims: list[Live] = []
        worst_first = sorted(self.running, key=lambda r: (r.request.priority, -r.sequence))
        for victim in worst_first:
            if live.request.priority - victim.request.priority <= threshold:
                break
            victims.append(victim)
            short -= victim.kv_tokens + int(self.ratio * victim.promised)
            if short <= 0:
                break
        if not victims or short > 0:
            return False
        for victim in victims:
            self.release(victim, now_s)
        self.preempted += len(victims)
        return True

    def _reserved(self) -> float:
        """Tokens set aside for what is running or half prefilled."""
        reserved = self.ratio * self.running.promised()
        if self.chunked is not None:
            left = self.chunked.size - self.chunked.done - self.chunked.private
            reserved += left + self.chunked.promised
        return reserved

    def _admit_one(self, live: Live, room: int, promised: int, now_s: float) -> int:
        """How many tokens of it are prefilled now; 0: they, and what is promised to it and to
        the others of this pass, do not fit."""
        cache = self.cache
        ids: Any = live.ids
        # At least one token is always prefilled: it gives the first output.
        held, node = cache.match(ids, live.size - 1, now_s)
        cache.lock(node)
        extend = live.size - held
        free = self.capacity - self.private_tokens - cache.locked_tokens
        if extend >= free - self._reserved() - promised:
            cache.unlock(node)
            return 0
        live.node, live.held, live.done = node, held, held
        loaded = 0 if self.host is None else self._load_back(live, self.host, now_s)
        extend -= loaded
        new = extend if extend < room else room
        self.take(new)
        live.settled_private = new
        self.waiting.remove(live)
        if new < extend:
            self.chunked = live
        live.queue_s += now_s - live.queued_at_s
        live.entered_s = now_s
        if live.entry_s is None:
            live.entry_s, live.cached, live.host_tokens = now_s, held + loaded, loaded
        return new

    def _load_back(self, live: Live, host: HostTier, now_s: float) -> int:
        """Tokens after its prefix on the GPU that come from the host, into the tree."""
        ids: Any = live.ids
        until = host.held(ids, live.size - 1, now_s)
        loaded = until - live.held
        if loaded < LOAD_LEAST_TOKENS:
            return 0
        live.node = self.cache.keep(live.node, ids, until, now_s)
        live.held = live.done = until
        self.take(0)
        self.loading_tokens += loaded
        return loaded

    def flush(self) -> None:
        """Forget every context, on the host too."""
        self.cache.flush()
        if self.host is not None:
            self.host.flush()
