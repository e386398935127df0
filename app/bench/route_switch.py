"""How long after the call is a switch in force, while steps keep coming?

From the call to the first step whose own answer says that it was decided by the new order; both
calls and the step's way through the engine are in it.
"""

from __future__ import annotations

import asyncio
import itertools
from statistics import median

import aiohttp

from heddle.app.bench.figures import Figure
from heddle.app.bench.route_stub import body_of

ORDERS = ("longest-first", "fcfs")
CLIENTS = 4


async def switched(url: str, token: str, switches: int) -> dict[str, Figure]:
    """The slowest of so many."""
    loop, took = asyncio.get_running_loop(), list[float]()
    auth = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(url) as http:
        others = [asyncio.create_task(_stepping(http, f"o{n}")) for n in range(CLIENTS)]
        for number in range(switches):
            order = ORDERS[number % 2]
            said = {"run": "switch", "order": order, "who": "bench", "why": "bench"}
            began = loop.time()
            async with http.post("/heddle/v1/switches", json=said, headers=auth) as reply:
                reply.raise_for_status()
            while not (await _step(http, "s")).startswith(f"{order},"):
                pass
            took.append(loop.time() - began)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    said = f"the slowest of {switches}, {CLIENTS} clients beside"
    note = f"{said}; median {median(took) * 1e3:.1f} ms"
    return {"switch_in_force_ms": Figure(max(took) * 1e3, "ms", 100, "lower", note)}


async def _stepping(http: aiohttp.ClientSession, agent: str) -> None:
    for _ in itertools.count():
        await _step(http, agent)


async def _step(http: aiohttp.ClientSession, agent: str) -> str:
    """How it was decided."""
    headers = {"Content-Type": "application/json", "X-Heddle-Run": "switch"}
    headers["X-Heddle-Trajectory-Id"] = agent
    async with http.post("/generate", data=body_of(256), headers=headers) as reply:
        await reply.read()
        return reply.headers["X-Heddle-Decision"]
