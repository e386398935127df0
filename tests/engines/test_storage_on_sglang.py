"""Does `heddle profile` get from a genuine engine what its storage brings back?"""

from __future__ import annotations

import asyncio

import pytest
from contract_calls import Engine

from heddle.app.probe import Grid, Probe
from heddle.controller.fleet.sglang import SglangEngine, open_session
from heddle.models.profiling import Fetch

pytestmark = pytest.mark.timeout(420)

TOKENS = 512
GRID = Grid(decode=(), new=(), prefixes=(), fetches=(TOKENS,), repeats=3)


def timed(engine: Engine) -> list[Fetch]:
    async def run() -> list[Fetch]:
        async with open_session() as session:
            probe = Probe(SglangEngine(engine.url, session), GRID, lambda _done, _of: None)
            await probe.fetch(TOKENS)
            return probe.fetched

    return asyncio.run(run())


def test_a_fetch_from_the_storage_takes_longer_than_the_same_from_the_gpu(
    neighbour: Engine,
) -> None:
    (fetch,) = timed(neighbour)
    assert fetch.tokens == TOKENS
    assert fetch.seconds > 0
