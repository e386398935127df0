"""How fast is a live engine, and how is that kept?

One grid of decode, one of prefill, and fetches where it has a storage, as far as its room goes.
What the points say is fitted in models.profiling; every saved profile is a new version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from heddle.app.errors import fail
from heddle.app.probe import BESIDE, Grid, Meta, Probe, Told, background
from heddle.controller.fleet.engine import Capabilities
from heddle.controller.fleet.sglang import SglangEngine
from heddle.models.profiling import (
    Decode,
    Fetch,
    Fit,
    Prefill,
    Subject,
    profile_document,
    sweep_document,
)

CONTEXTS: Final = (64, 256, 1_024, 4_096, 16_384)
BATCHES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
NEW: Final = (64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192)
FETCHED: Final = (512, 2_048, 8_192)
"""Whole pages of every usual size; SGLang looks into a storage for 256 tokens and more."""
ROOM: Final = 0.8
"""Share of the KV room that a point may fill: beyond it an engine evicts and retracts."""


@dataclass(slots=True)
class Timings:
    """Everything that was timed."""

    subject: Subject
    decode: list[Decode] = field(default_factory=list[Decode])
    prefill: list[Prefill] = field(default_factory=list[Prefill])
    fetch: list[Fetch] = field(default_factory=list[Fetch])


def grid_for(
    kv_tokens: int, max_running: int, context_tokens: int, *, quick: bool, most: int | None = None,
    stores: bool = False,
) -> Grid:  # fmt: skip
    """Levels and sizes that fit into that room; fetches only of an engine that `stores`."""
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
    fetches = tuple(n for n in FETCHED if stores and n < min(longest, room - BESIDE))
    repeats = 1 if quick else 5
    return Grid(decode=tuple(levels), new=new, prefixes=prefixes, fetches=fetches, repeats=repeats)


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
    grid = grid_for(
        can.kv_tokens, can.max_running, longest, quick=quick, most=most, stores=bool(can.storage)
    )
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
    for tokens in grid.fetches:
        await probe.fetch(tokens)
    subject = await probe.subject(can, info, reload=reload)
    return Timings(subject, probe.decoded, probe.prefilled, probe.fetched)


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


def save(
    folder: Path, name: str | None, timings: Timings, decode: Fit, prefill: Fit
) -> tuple[Path, dict[str, Any]]:
    """The next version of that name: the laws, and beside them the raw sweep."""
    kept = folder / re.sub(r"[^\w.-]+", "-", name or timings.subject.model)
    kept.mkdir(parents=True, exist_ok=True)
    version = 1 + max((int(p.stem[1:]) for p in kept.glob("v[0-9][0-9][0-9][0-9].json")), default=0)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    document = profile_document(
        timings.subject, decode, prefill, timings.fetch, version=version, measured_at=now
    )
    sweep = sweep_document(timings.subject, timings.decode, timings.prefill, timings.fetch)
    path = kept / f"v{version:04}.json"
    kept.joinpath(f"v{version:04}.sweep").write_bytes(_pretty(sweep))
    path.write_bytes(_pretty(document))
    return path, document


def _pretty(document: dict[str, Any]) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n"
