"""How fast is a live engine, timed by its own clock?

Requests of known shape over the controller's port, one grid of decode and one of prefill. Times
are the engine's own stamps, so that an emulated one at any clock speed is timed in its fleet time.
A probe decodes beside a background of known size; what overlapped it is taken from the stamps too,
not from what was asked for.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import orjson

from heddle.app.errors import fail
from heddle.controller.errors import EngineError
from heddle.controller.fleet.engine import Capabilities
from heddle.controller.fleet.sglang import SglangEngine
from heddle.models.profiling import (
    Decode,
    Fit,
    Prefill,
    Subject,
    profile_document,
    sweep_document,
)

PROBE: Final = 32
"""Iterations of a probe: a stamp is late by a millisecond or two, 1 % of them at 6 ms."""
CONTEXTS: Final = (64, 256, 1_024, 4_096, 16_384)
BATCHES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
NEW: Final = (64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192)
ROOM: Final = 0.8
"""Share of the KV room that a point may fill: beyond it an engine evicts and retracts."""
_FIRST_ID, _IDS = 10, 290
"""Inside every vocabulary: an id outside it ends a genuine engine."""
_JSON: Final = {"content-type": "application/json"}
_RAMP_S, _RAMP_EACH_S = 0.3, 0.02
"""A request is tokenised and prefilled in that many seconds, one after the other."""
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
    repeats: int

    @property
    def points(self) -> int:
        return sum(len(batches) for _, batches in self.decode) + len(self.new) * len(self.prefixes)


@dataclass(slots=True)
class Timings:
    """Everything that was timed."""

    subject: Subject
    decode: list[Decode] = field(default_factory=list[Decode])
    prefill: list[Prefill] = field(default_factory=list[Prefill])


def grid_for(
    kv_tokens: int, max_running: int, context_tokens: int, *, quick: bool, most: int | None = None
) -> Grid:
    """Levels and sizes that fit into that room."""
    room, longest = int(kv_tokens * ROOM), min(context_tokens, int(kv_tokens * ROOM)) - 16
    sizes = BATCHES[::2] if quick else BATCHES
    levels: list[tuple[int, tuple[int, ...]]] = []
    for context in CONTEXTS[: 3 if quick else None]:
        fits = (b for b in sizes if b <= min(max_running, most or max_running))
        batches = tuple(b for b in fits if b * (context + background(b)) <= room)
        if len(batches) > 1 and context + background(batches[-1]) <= longest:
            levels.append((context, batches))
    biggest = max(NEW[0], longest // 2)
    new = tuple(n for n in NEW[:: 2 if quick else 1] if n <= biggest)
    rest = min(longest - new[-1], 32_768)
    prefixes = (0, rest // 4 // 16 * 16, rest // 16 * 16)
    return Grid(decode=tuple(levels), new=new, prefixes=prefixes, repeats=1 if quick else 5)


def background(batch: int) -> int:
    """Tokens a request beside the probe asks for: more than are made until the probe has ended."""
    return 3 * PROBE + 40 + 3 * batch


async def measure(
    engine: SglangEngine,
    *,
    quick: bool,
    force_busy: bool,
    reload: bool,
    told: Told,
    most: int | None = None,
) -> Timings:
    """All points of an engine; ends the command with a sentence when it cannot be timed."""
    can, info = await _able(engine, force_busy=force_busy)
    longest = int(info.get("context_length") or info.get("max_req_input_len") or 1 << 30)
    grid = grid_for(can.kv_tokens, can.max_running, longest, quick=quick, most=most)
    if len(grid.decode) < 2:
        fail(f"a KV room of {can.kv_tokens} tokens is too small to time decode at two contexts")
    probe = Probe(engine, grid, told)
    await probe.warm_up()
    for level, (context, batches) in enumerate(grid.decode):
        for batch in batches:
            await probe.decode(level, context, batch)
    for prefix in grid.prefixes:
        for new in grid.new:
            await probe.prefill(new, prefix)
    subject = await probe.subject(can, info, reload=reload)
    return Timings(subject, probe.decoded, probe.prefilled)


async def _able(engine: SglangEngine, *, force_busy: bool) -> tuple[Capabilities, Meta]:
    """What it is; a sentence when it cannot be timed."""
    can, load = await engine.capabilities(), await engine.observe()
    if not can.kv_tokens:
        fail(f"{engine.url} does not say how many tokens it holds; is it an SGLang engine?")
    if not can.metrics:
        fail(f"the engine at {engine.url} says no timings; start it with --enable-metrics")
    if load.running + load.queued and not force_busy:
        busy = f"{load.running} running and {load.queued} queued requests"
        fail(f"the engine at {engine.url} has {busy}; wait, or time it anyway with --force-busy")
    reply = await engine.send("/server_info", b"", {})
    return can, orjson.loads(reply.body)


class Probe:
    """Sends requests of known shape and keeps what their stamps say."""

    def __init__(self, engine: SglangEngine, grid: Grid, told: Told) -> None:
        self.decoded: list[Decode] = []
        self.prefilled: list[Prefill] = []
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
            request_s=max(0.0, median(self._beside)),
            load_s=load_s,
            sleep_s=sleep_s,
            wake_s=wake_s,
        )

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


def save(
    folder: Path, name: str | None, timings: Timings, decode: Fit, prefill: Fit
) -> tuple[Path, dict[str, Any]]:
    """The next version of that name: the laws, and beside them the raw sweep."""
    kept = folder / re.sub(r"[^\w.-]+", "-", name or timings.subject.model)
    kept.mkdir(parents=True, exist_ok=True)
    version = 1 + max((int(p.stem[1:]) for p in kept.glob("v[0-9][0-9][0-9][0-9].json")), default=0)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    document = profile_document(timings.subject, decode, prefill, version=version, measured_at=now)
    sweep = sweep_document(timings.subject, timings.decode, timings.prefill)
    path = kept / f"v{version:04}.json"
    kept.joinpath(f"v{version:04}.sweep").write_bytes(_pretty(sweep))
    path.write_bytes(_pretty(document))
    return path, document


def _pretty(document: dict[str, Any]) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n"
