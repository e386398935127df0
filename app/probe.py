"""How are requests of known shape sent to a live engine, and what do their stamps say?

Times are the engine's own stamps, so that an emulated one at any clock speed is timed in its fleet
time. A probe decodes beside a background of known size; what overlapped it is taken from the stamps
too, not from what was asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np
import orjson

from heddle.app.errors import fail
from heddle.controller.errors import EngineError
from heddle.controller.fleet.engine import Capabilities
from heddle.controller.fleet.sglang import SglangEngine
from heddle.models.profiling import Decode, Fetch, Prefill, Subject

PROBE: Final = 32
"""Iterations of a probe: a stamp is late by a millisecond or two, 1 % of them at 6 ms."""
_FIRST_ID, _IDS = 10, 290
"""Inside every vocabulary: an id outside it ends a genuine engine."""
_JSON: Final = {"content-type": "application/json"}
_RAMP_S, _RAMP_EACH_S = 0.3, 0.02
"""A request is tokenised and prefilled in that many seconds, one after the other."""
_SETTLE_S: Final = (0.2, 0.5, 1.0, 2.0)
BESIDE: Final = 1_000
"""Tokens of the decode beside a fetch: more than are made until it has ended."""
_GIB: Final = 1 << 30

Meta = dict[str, Any]
Told = Callable[[int, int], None]
"""Called with how many of how many requests are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Which points are timed, and how often."""

    decode: tuple[tuple[int, tuple[int, ...]], ...]
    """(context, batches) of each level."""
    new: tuple[int, ...]
    prefixes: tuple[int, ...]
    fetches: tuple[int, ...]
    """Tokens of each context that is brought back from the engine's storage."""
    repeats: int

    @property
    def points(self) -> int:
        decode = sum(len(batches) for _, batches in self.decode)
        return decode + len(self.new) * len(self.prefixes) + len(self.fetches)


def background(batch: int) -> int:
    """Tokens a request beside the probe asks for: more than are made until the probe has ended."""
    return 3 * PROBE + 40 + 3 * batch


class Probe:
    """Sends requests of known shape and keeps what their stamps say."""

    def __init__(self, engine: SglangEngine, grid: Grid, told: Told) -> None:
        self.decoded: list[Decode] = []
        self.prefilled: list[Prefill] = []
        self.fetched: list[Fetch] = []
        self._engine, self._grid, self._told = engine, grid, told
        self._rng = np.random.default_rng(time.time_ns())
        self._contexts: list[list[int]] = []
        self._warm: dict[int, int] = {}
        self._done = self._count = 0
        self._beside: list[float] = []

    async def warm_up(self) -> None:
        """An empty cache, and the first requests of a process out of the way."""
        await self._engine.send("/flush_cache", b"{}", _JSON)
        for _ in range(3):
            await self._generate(self._ids(48), 8)
        for _ in range(5):
            meta = await self._generate(self._ids(48), 4)
            inside_s = meta["request_finished_ts"] - meta["forward_entry_time"]
            self._beside.append(meta["e2e_latency"] - inside_s - meta["queue_time"])

    async def decode(self, level: int, context: int, batch: int) -> None:
        """One point: the median of `repeats` probes beside a background of batch - 1."""
        for slot in range(batch):
            await self._prefix(slot, context)
        found = [
            await self._beside_others(level, context, batch) for _ in range(self._grid.repeats)
        ]
        found.sort(key=lambda point: point.seconds)
        self.decoded.append(found[len(found) // 2])
        self._tell()

    async def prefill(self, new: int, prefix: int) -> None:
        """One point: the median of new tokens that no cache has, after a prefix that it has."""
        seconds: list[float] = []
        if prefix:
            await self._prefix(0, prefix)
        for _ in range(self._grid.repeats):
            ids = [*self._contexts[0][:prefix], *self._ids(new)]
            meta = await self._generate(ids, 1)
            seconds.append(meta["prefill_finished_time"] - meta["forward_entry_time"])
        self.prefilled.append(Prefill(new, prefix, median(seconds)))
        self._tell()

    async def fetch(self, tokens: int) -> None:
        """One point: what a context takes that comes from the storage, beyond what it takes once it
        is on the GPU. None where the storage does not bring all of it back."""
        found = [await self._from_storage(tokens) for _ in range(self._grid.repeats)]
        seconds = [took_s for took_s in found if took_s is not None]
        if seconds:
            self.fetched.append(Fetch(tokens, max(0.0, median(seconds))))
        self._tell()

    async def subject(self, can: Capabilities, info: Meta, *, reload: bool) -> Subject:
        """Who was timed, its room, and how long loading and waking take."""
        state = (info.get("internal_states") or [{}])[0]
        memory, load = state.get("memory_usage", {}), await self._accelerator()
        load_s = await self._reloaded(info) if reload else None
        sleep_s, wake_s = await self._slept() if can.memory_saver else (None, None)
        kv_bytes = float(memory.get("kvcache") or 0) * _GIB * max(can.degree, 1)
        return Subject(
            system=load or str(info.get("device") or "measured"),
            model=can.model.rstrip("/").rsplit("/", 1)[-1] or "model",
            degree=can.degree or 1,
            engine=f"sglang {info.get('version', '?')}" + " emulated" * bool(info.get("emulated")),
            kv_tokens=can.kv_tokens,
            max_running=can.max_running,
            chunk_tokens=int(info.get("chunked_prefill_size") or 0),
            page_tokens=int(info.get("page_size") or 1),
            weight_bytes=round(float(memory.get("weight") or 0) * _GIB * max(can.degree, 1)),
            kv_bytes_per_token=round(kv_bytes / can.kv_tokens),
            storage=can.storage,
            request_s=max(0.0, median(self._beside)),
            load_s=load_s,
            sleep_s=sleep_s,
            wake_s=wake_s,
        )

    async def _from_storage(self, tokens: int) -> float | None:
        """After a flush what is cached came from there. A write goes out behind its pass: who
        forgets too soon finds nothing, and tries again.

        A lone decode goes on beside, as in a fleet: under --sleep-on-idle a scheduler that only
        waits for its storage would sleep until the next message.
        """
        ids, rid = self._ids(tokens + 1), self._rid()
        for settle_s in _SETTLE_S:
            await self._generate(ids, 0)
            await asyncio.sleep(settle_s)
            if (await self._engine.send("/flush_cache", b"{}", _JSON)).status >= 400:
                continue
            beside = asyncio.create_task(self._generate(self._ids(8), BESIDE, rid))
            await self._running(1)
            cold, warm = await self._generate(ids, 0), await self._generate(ids, 0)
            await self._engine.abort(rid)
            await beside
            if cold["cached_tokens"] >= tokens:
                return cold["e2e_latency"] - warm["e2e_latency"]
        return None

    async def _beside_others(self, level: int, context: int, batch: int) -> Decode:
        rids = [self._rid() for _ in range(batch - 1)]
        asked = background(batch)
        others = [
            asyncio.create_task(self._generate(self._contexts[slot][:context], asked, rid))
            for slot, rid in enumerate(rids, 1)
        ]
        await self._running(batch - 1)
        meta = await self._generate(self._contexts[0][:context], PROBE + 1)
        await asyncio.gather(*(self._engine.abort(rid) for rid in rids))
        return _decoded(level, meta, [await other for other in others])

    async def _running(self, count: int) -> None:
        """Return when that many run, or should: a genuine engine's load was seen to miss a lone
        request for all of its 142 iterations. What really ran the stamps say afterwards."""
        deadline = time.monotonic() + _RAMP_S + _RAMP_EACH_S * count
        while count and (await self._engine.observe()).running < count:
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(0.01)

    async def _prefix(self, slot: int, tokens: int) -> None:
        """Have the first tokens of that slot's context in the cache."""
        while len(self._contexts) <= slot:
            self._contexts.append([])
        context = self._contexts[slot]
        context.extend(self._ids(max(0, tokens - len(context))))
        await self._generate(context[:tokens], 0)

    async def _generate(self, ids: Sequence[int], new: int, rid: str | None = None) -> Meta:
        body = {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": new, "ignore_eos": True},
            "rid": rid or self._rid(),
            "priority": 0,
            "log_metrics": False,
        }
        reply = await self._engine.send("/generate", orjson.dumps(body), _JSON)
        if reply.status >= 400:
            said = reply.body.decode(errors="replace")[:200]
            fail(f"the engine at {self._engine.url} refused a request of {len(ids)} tokens: {said}")
        return orjson.loads(reply.body)["meta_info"]

    async def _accelerator(self) -> str:
        reply = await self._engine.send("/v1/loads", b"", {})
        return str(orjson.loads(reply.body).get("accelerator") or "")

    async def _reloaded(self, info: Meta) -> float | None:
        """Seconds of loading the weights it has once more; None when it refuses."""
        model = orjson.loads((await self._engine.send("/model_info", b"", {})).body)
        version = model.get("weight_version", "default")
        body = orjson.dumps({"model_path": info["model_path"], "weight_version": version})
        before = await self._generate(self._ids(8), 1)
        reply = await self._engine.send("/update_weights_from_disk", body, _JSON)
        after = await self._generate(self._ids(8), 1)
        took_s = after["request_received_ts"] - before["request_finished_ts"]
        return took_s if reply.status < 400 else None

    async def _slept(self) -> tuple[float | None, float | None]:
        """Seconds of falling asleep and of waking: the engine's time, shared as the wall's was."""
        before, began = await self._generate(self._ids(8), 1), time.monotonic()
        try:
            await self._engine.sleep()
            asleep = time.monotonic()
            await self._engine.wake()
        except EngineError:
            return None, None
        share = (asleep - began) / max(time.monotonic() - began, 1e-9)
        after = await self._generate(self._ids(8), 1)
        took_s = after["request_received_ts"] - before["request_finished_ts"]
        return took_s * share, took_s * (1 - share)

    def _ids(self, count: int) -> list[int]:
        return (_FIRST_ID + self._rng.integers(0, _IDS, count)).tolist()

    def _rid(self) -> str:
        self._count += 1
        return f"profile-{self._count:06d}"

    def _tell(self) -> None:
        self._done += 1
        self._told(self._done, self._grid.points)


def _decoded(level: int, probe: Meta, others: Sequence[Meta]) -> Decode:
    """The probe's iterations, with the mean batch and context that its stamps overlap."""
    start, end = probe["prefill_finished_time"], probe["request_finished_ts"]
    batch, contexts = 1.0, probe["prompt_tokens"] + probe["completion_tokens"] / 2
    for other in others:
        began, ended = other["prefill_finished_time"], other["request_finished_ts"]
        shared_s = min(end, ended) - max(start, began)
        if shared_s <= 0:
            continue
        middle = (max(start, began) + min(end, ended)) / 2
        made = other["completion_tokens"] * (middle - began) / max(ended - began, 1e-9)
        batch += shared_s / (end - start)
        contexts += (other["prompt_tokens"] + made) * shared_s / (end - start)
    return Decode(level, batch, contexts / batch, (end - start) / PROBE)
