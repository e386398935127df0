"""What does one emulated SGLang engine do, event by event?

Pure: time comes in, nothing sleeps. Between events the batch is constant, so a thousand decode
iterations cost one closed form. The same inputs at the same times give the same events, bit for
bit; `advance` may be called as rarely or as often as one likes.
"""

from __future__ import annotations

from math import inf
from typing import Literal

from heddle.controller.emulator.admission import RATIO_START, Scheduler
from heddle.controller.emulator.batch import Live
from heddle.controller.emulator.cache import Ids, PrefixCache
from heddle.controller.emulator.errors import BadRequest, EngineBusy
from heddle.controller.emulator.loads import Counters, Loads
from heddle.controller.emulator.passes import DecodePass, PrefillPass, prefill_pass
from heddle.controller.emulator.request import (
    NO_IDS,
    EngineConfig,
    Finished,
    Reason,
    Request,
    output_ids,
)
from heddle.controller.emulator.span import Span, SpanCache
from heddle.controller.emulator.truth import Truth, load_truth

PauseMode = Literal["abort", "retract", "in_place"]
# A pass is planned at most this far; longer ones are planned again at the same instant.
_MOST_ITERATIONS = 2048
# With preemption on, SGLang tries the queue before every iteration; whether the head fits changes
# with the reserve, which falls at each of them.
_RETRY_ITERATIONS = 1


class Engine:
    """One engine; every method takes the time at which it happens, never earlier than the last.

    With `spans` its requests name their contexts (`Span`) instead of listing token ids.
    """

    def __init__(
        self, config: EngineConfig, truth: Truth | None = None, *, spans: bool = False
    ) -> None:
        self.config = config
        self.truth = truth or load_truth(config.system, config.model, config.degree, config.truth)
        cache = SpanCache() if spans else PrefixCache()
        self.scheduler = Scheduler(config, config.kv_tokens or self.truth.kv_tokens, cache)
        self.counters = Counters()
        self._most_tokens = min(config.context_tokens, self.scheduler.capacity) - 1
        self.weight_version = "default"
        self.paused: PauseMode | None = None
        self.asleep: set[str] = set()
        self.slow_s = 0.0
        self._live: dict[str, Live] = {}
        self._pass: PrefillPass | DecodePass | None = None
        self._now_s = 0.0
        self._blocked_until_s = 0.0
        self._sequence = 0
        self._events: list[Finished] = []
        self._aborting: list[Live] = []
        self.passes: list[tuple[str, float, float]] | None = None
        """(prefill or decode, start_s, end_s) of every pass, when it is set to a list."""

    @property
    def is_idle(self) -> bool:
        return not self._live

    @property
    def live_rids(self) -> list[str]:
        return list(self._live)

    def submit(self, request: Request, now_s: float) -> None:
        """Queue a request; refused with SGLang's sentences when it can never run."""
        under_way = self._pass
        if under_way is None or under_way.end_s <= now_s:
            self._run(now_s)
        target = self._check(request)
        self._sequence += 1
        live = Live(request, target, now_s, self._sequence)
        self._live[request.rid] = live
        self._enqueue(live, now_s)

    def _enqueue(self, live: Live, now_s: float) -> None:
        self.scheduler.queue(live, now_s)
        if self.config.preemption_threshold is not None or not self.scheduler.full:
            self._cut(now_s)
        self._run(now_s)

    def advance(self, now_s: float) -> list[Finished]:
        """Everything that ended up to that time, in order, once."""
        self._run(now_s)
        events = self._events
        if events:
            self._events = []
        return events

    def next_event_s(self) -> float:
        """When the next pass ends (a finish comes no sooner); infinite when nothing runs."""
        if self._events:
            return self._now_s
        if self._pass is not None:
            return self._pass.end_s
        held = self.paused is not None or self.asleep or not self._live
        return inf if held else max(self._now_s, self._blocked_until_s)

    def progress(self, rid: str, now_s: float) -> int:
        """Output tokens a running request has produced by then."""
        live = self._live.get(rid)
        if live is None:
            return 0
        if live.batch is None or not isinstance(self._pass, DecodePass):
            return live.out
        return min(live.out + self._pass.ended_by(now_s), live.target)

    def output_between(self, rid: str, since: int, until: int) -> Ids:
        """Output ids of a live request; none of one that is gone."""
        live = self._live.get(rid)
        if live is None or isinstance(live.request.ids, Span):
            return NO_IDS
        position = live.prompt_tokens + since
        return output_ids(live.salt, position, until - since, text=live.request.text)

    def abort(self, rid: str | None, now_s: float) -> int:
        """End one request (by rid prefix) or all (None); what was computed stays in the cache."""
        self._run(now_s)
        chosen = [x for x in self._live.values() if rid is None or x.request.rid.startswith(rid)]
        self._cut(now_s)
        for live in chosen:
            if not live.aborting:
                live.aborting = True
                self._aborting.append(live)
            if live in self.scheduler.waiting:
                self.scheduler.waiting.remove(live)
                live.queue_s += now_s - live.queued_at_s
                self.scheduler.drop(live)
                self._finish(live, now_s, "abort")
        self._run(now_s)
        return len(chosen)

    def pause(self, mode: PauseMode, now_s: float) -> None:
        """abort: end all; in_place: freeze after this iteration; retract: running back to queue."""
        self._run(now_s)
        self._cut(now_s)
        self.paused = mode
        if mode == "abort":
            self.abort(None, now_s)
        self._run(now_s)

    def resume(self, now_s: float) -> None:
        self._run(now_s)
        self.paused = None
        self._run(now_s)

    def flush(self, now_s: float) -> None:
        """Empty the prefix cache; refused while requests run or wait."""
        self._run(now_s)
        if (
            len(self.scheduler.running)
            or self.scheduler.chunked
            or (self.scheduler.waiting and self.paused is None)
        ):
            counts = f"running {len(self.scheduler.running)}, waiting {len(self.scheduler.waiting)}"
            sentence = f"Cache not flushed because there are pending requests ({counts})."
            raise EngineBusy(sentence)
        self.scheduler.flush()

    def sleep(self, tags: set[str], now_s: float) -> float:
        """Release memory; returns the seconds it takes. Needs an idle engine; KV is lost."""
        self._run(now_s)
        if (
            self._pass is not None
            or self.scheduler.running
            or (self.scheduler.waiting and self.paused is None)
        ):
            sentence = "release_memory_occupation should be called only when server is idle."
            raise EngineBusy(sentence)
        self.asleep |= tags
        if "kv_cache" in tags:
            self.scheduler.flush()
        return 0.5

    def wake(self, tags: set[str], now_s: float) -> float:
        """Bring memory back; returns the seconds until requests run again."""
        self._run(now_s)
        back = tags & self.asleep
        # Weights return over PCIe at about 40 GB/s a GPU; 0.5 s for the other tags.
        share_s = self.truth.weight_bytes / self.config.degree / 40e9 if "weights" in back else 0.0
        self.asleep -= tags
        took_s = 0.5 + share_s
        self._blocked_until_s = max(self._blocked_until_s, now_s + took_s)
        self._run(now_s)
        return took_s

    def load_weights(self, version: str, now_s: float) -> float:
        """New weights from disk at 4 GB/s; returns the seconds it takes. Flushes unless frozen."""
        self._run(now_s)
        if self._pass is not None or (self.scheduler.running and self.paused is None):
            sentence = "update_weights_from_disk waits for running requests; pause first."
            raise EngineBusy(sentence)
        took_s = self.truth.weight_bytes / 4e9
        self._blocked_until_s = max(self._blocked_until_s, now_s + took_s)
        self.weight_version = version
        if not self.scheduler.running:
            self.scheduler.flush()
        return took_s

    def slow_down(self, forward_sleep_s: float, now_s: float) -> None:
        """Every iteration from now on sleeps that much longer."""
        self._run(now_s)
        self._cut(now_s)
        self.slow_s = max(0.0, forward_sleep_s)
        self._run(now_s)

    def loads(self, now_s: float) -> Loads:
        self._run(now_s)
        prefilling = self._pass.parts if isinstance(self._pass, PrefillPass) else ()
        held = (self.paused is not None, bool(self.asleep))
        return Loads.of(self.scheduler, len(prefilling), *held)

    def _check(self, request: Request) -> int:
        """Output tokens it may get, or the sentence SGLang refuses it with."""
        size, limit = len(request.ids), self._most_tokens
        if request.rid in self._live:
            sentence = f"Duplicate request ID detected: {request.rid}"
            raise BadRequest(sentence)
        if size == 0:
            sentence = "input_ids must not be empty"
            raise BadRequest(sentence)
        if size >= limit:
            most = f"the model's context length ({limit + 1} tokens)"
            sentence = f"The input ({size} tokens) is longer than {most}."
            raise BadRequest(sentence)
        queued = self.config.max_queued
        if queued is not None and len(self.scheduler.waiting) >= queued:
            sentence = "The request queue is full."
            raise EngineBusy(sentence)
        return request.max_new_tokens if request.max_new_tokens < limit - size else limit - size

    def _run(self, now_s: float) -> None:
        """Complete passes that end by then, and plan what follows at each end."""
        while True:
            under_way = self._pass
            if under_way is None:
                self._pass = under_way = self._plan(now_s)
                if under_way is None:
                    self._now_s = self._now_s if self._now_s > now_s else now_s
                    return
            if under_way.end_s > now_s:
                return
            self._pass, self._now_s = None, under_way.end_s
            if isinstance(under_way, DecodePass):
                self._complete_decode(under_way)
            else:
                self._complete_prefill(under_way)

    def _cut(self, now_s: float) -> None:
        """Let the running pass end with the iteration under way, so that the queue is looked at."""
        if not isinstance(self._pass, DecodePass):
            return
        self._pass.cut(now_s)
        if self._pass.iterations == 0:
            self._pass = None

    def _plan(self, now_s: float) -> PrefillPass | DecodePass | None:
        if self.paused is not None or self.asleep:
            if self.paused == "retract":
                self.scheduler.release_all(self._now_s)
            return None
        start_s = self._now_s if self._now_s > self._blocked_until_s else self._blocked_until_s
        if start_s > now_s and start_s > self._now_s:
            return None
        s = self.scheduler
        parts = s.admit(start_s) if s.waiting or s.chunked is not None else None
        if parts:
            sizes = [part[1:] for part in parts]
            took_s = self.truth.prefill_s(sizes, self.counters.iterations, self.slow_s)
            if s.loading_tokens:
                took_s = max(took_s, self._load_s())
            return prefill_pass((start_s, start_s + took_s, parts))
        if not s.running.size:
            s.ratio, s.full = RATIO_START, False
            return None
        return self._decode(start_s)

    def _load_s(self) -> float:
        """Layer by layer beside the prefill: the longer of both is what is seen."""
        tokens, self.scheduler.loading_tokens = self.scheduler.loading_tokens, 0
        host = self.config.host
        return tokens * self.truth.kv_bytes / host.load_bytes_per_s if host else 0.0

    def _decode(self, start_s: float) -> DecodePass:
        s = self.scheduler
        running = s.running
        if s.available_tokens < running.size:
            s.retract(start_s)
        batch = running.size
        most, room = running.least_remaining(), s.available_tokens // batch
        most = most if most < room else room
        most = most if most < _MOST_ITERATIONS else _MOST_ITERATIONS
        if self._aborting:
            # It was told between two iterations or during a prefill: one more, and it leaves.
            most = most if most < 1 else 1
        if s.waiting and (self.config.preemption_threshold is not None or not s.full):
            most = most if most < _RETRY_ITERATIONS else _RETRY_ITERATIONS
        done = self.counters.iterations
        pieces = self.truth.pieces(batch, running.contexts, done, most or 1, self.slow_s)
        return DecodePass(start_s, batch, pieces)

    def _complete_prefill(self, ended: PrefillPass) -> None:
        start_s, now_s, parts = ended
        s, counters = self.scheduler, self.counters
        if self.passes is not None:
            self.passes.append(("prefill", start_s, now_s))
        counters.prefill_s += now_s - start_s
        counters.iterations += 1
        for live, new, prefix in parts:
            s.keep(live, prefix + new, now_s)
            counters.prompt_tokens += new
            if live.done < live.size:
                if live.aborting:
                    s.chunked = None
                    s.drop(live)
                    self._finish(live, now_s, "abort")
                continue
            live.prefilled_s = now_s
            live.prefill_end_s = live.prefill_end_s or now_s
            self._first_token(live, now_s)

    def _first_token(self, live: Live, now_s: float) -> None:
        """A complete prefill yields one token, unless none was asked for."""
        if live.target > 0:
            live.settled_out += 1
            self.counters.generated_tokens += 1
        running = self.scheduler.running
        running.add(live)
        if live.end_at <= running.done or live.aborting:
            self._end(live, now_s)

    def _complete_decode(self, ended: DecodePass) -> None:
        s, counters = self.scheduler, self.counters
        start_s, end_s, count = ended.start_s, ended.end_s, ended.iterations
        made = count * ended.batch
        s.take(made)
        s.decay(count)
        if self.passes is not None:
            self.passes.append(("decode", start_s, end_s))
        counters.decode_s += end_s - start_s
        counters.iterations += count
        counters.generated_tokens += made
        s.running.step(count)
        ended_now = s.running.ended()
        if self._aborting:
            ended_now = sorted(
                {*ended_now, *(x for x in self._aborting if x.batch is not None)},
                key=lambda live: live.joined,
            )
        for live in ended_now:
            self._end(live, end_s)

    def under_way(self, now_s: float) -> tuple[str, float, float] | None:
        """What it is doing at that time, cut there."""
        if self._pass is None or self._pass.start_s >= now_s:
            return None
        kind = "prefill" if isinstance(self._pass, PrefillPass) else "decode"
        return kind, self._pass.start_s, min(self._pass.end_s, now_s)

    def _end(self, live: Live, now_s: float) -> None:
        """Leave the batch; all computed KV (the last token has none) goes to the tree."""
        s = self.scheduler
        s.running.remove(live)
        s.full = False
        computed = live.prompt_tokens + live.settled_out - 1
        kept = live.held + live.settled_private
        s.leave(live, computed if computed > kept else kept, now_s)
        done = live.settled_out >= live.target
        self._finish(live, now_s, ("stop" if live.stops else "length") if done else "abort")

    def _finish(self, live: Live, now_s: float, reason: Reason) -> None:
        del self._live[live.request.rid]
        if live.aborting:
            self._aborting.remove(live)
        counters = self.counters
        counters.finished += 1
        counters.aborted += reason == "abort"
        counters.cached_tokens += live.cached or 0
        self._sequence += 1
        self._events.append(live.ended(now_s, self._sequence, reason, self.weight_version))
