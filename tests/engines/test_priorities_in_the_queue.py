"""Do new priorities reorder requests that already wait in a genuine SGLang, on every rank alike?

One engine of one rank and one of two (gloo): 200 changes during 64 queued requests. Two slots, so
that the order in which requests end is the order of the queue.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from contract_calls import SLOTS

from heddle.controller.fleet.sglang import capabilities_of

pytestmark = pytest.mark.timeout(900)

REQUESTS, CHANGES, BLOCKED = 64, 200, 600


@pytest.fixture(params=["plugged_tp1", "plugged_tp2"], ids=["tp1", "tp2"])
def engine(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Its address and that of the plugin's port."""
    engine, changes = request.getfixturevalue(request.param)
    return engine.url, changes


def generate(url: str, rid: str, tokens: int) -> dict[str, Any]:
    sampling = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0}
    start = int(rid.rpartition("-")[2]) * 31
    ids = [10 + (start + i * 7) % 350 for i in range(24)]
    body = {"input_ids": ids, "sampling_params": sampling, "rid": rid, "priority": 0}
    reply = httpx.post(f"{url}/generate", json=body, timeout=600)
    assert reply.status_code == 200, reply.text
    return reply.json()["meta_info"]


def waiting(url: str) -> int:
    loads = httpx.get(f"{url}/v1/loads", timeout=30).json()["loads"]
    return sum(load["num_waiting_reqs"] for load in loads)


def slow_down(url: str, seconds: float | None) -> None:
    """Every forward pass takes that much longer: SGLang's own knob for a straggler."""
    body = {"forward_sleep_time": seconds}
    assert httpx.post(f"{url}/slow_down", json=body, timeout=60).status_code == 200


def change(changes: str, wanted: dict[str, int]) -> None:
    reply = httpx.post(changes, json={"changes": wanted}, timeout=60, verify=False)
    assert reply.status_code == 200, reply.text


def settle(changes: str) -> None:
    """Return when nothing was sent or applied for longer than a change and a pass may take."""
    before, deadline = None, time.monotonic() + 60
    while time.monotonic() < deadline:
        counts = httpx.get(changes, timeout=30).json()
        if counts == before:
            return
        before = counts
        time.sleep(1.5)


def test_changes_during_a_queue_reorder_it_and_lose_nothing(engine: tuple[str, str]) -> None:
    url, changes = engine
    before = httpx.get(changes, timeout=30).json()["asked"]
    rids = [f"queued-{i:04d}" for i in range(REQUESTS)]
    done: list[str] = []
    lock = threading.Lock()

    def one(rid: str) -> dict[str, Any]:
        meta = generate(url, rid, 12)
        with lock:
            done.append(rid)
        return meta

    with ThreadPoolExecutor(REQUESTS + SLOTS) as pool:
        blockers = [
            pool.submit(generate, url, f"blocker-{9000 + i}", BLOCKED) for i in range(SLOTS)
        ]
        time.sleep(1.0)
        slow_down(url, 0.4)
        queued = [pool.submit(one, rid) for rid in rids]
        deadline = time.monotonic() + 60
        while waiting(url) < REQUESTS and time.monotonic() < deadline:
            time.sleep(0.1)
        # Noise first: each asked several times, then the wish that counts: the last comes first.
        for i in range(CHANGES - REQUESTS):
            change(changes, {rids[i % REQUESTS]: i % 5})
        for i, rid in enumerate(rids):
            change(changes, {rid: i // 8 * 10})
        settle(changes)
        assert not any(b.done() for b in blockers), "the blockers ended before the changes counted"
        slow_down(url, None)
        metas = [f.result() for f in queued]
        [f.result() for f in blockers]
    counts = httpx.get(changes, timeout=30).json()
    assert len(done) == REQUESTS
    assert [m["completion_tokens"] for m in metas] == [12] * REQUESTS
    assert counts["asked"] - before == CHANGES
    assert REQUESTS <= counts["sent"] <= counts["asked"]
    assert counts["applied"] >= REQUESTS - 8
    # Two slots: neighbours may swap, bands may not, beyond the ends of each.
    bands = [int(rid[-4:]) // 8 for rid in done]
    assert sum(abs(a - b) for a, b in zip(bands, sorted(bands, reverse=True), strict=True)) <= 14
    assert bands[0] == 7
    assert bands[-1] == 0


def test_a_wrong_change_is_refused_with_a_sentence(engine: tuple[str, str]) -> None:
    _, changes = engine
    reply = httpx.post(changes, content=b'{"changes": [1]}', timeout=30)
    assert reply.status_code == 400
    assert "integer priority" in reply.json()["error"]


def test_an_engine_with_the_plugin_says_where_it_takes_changes(engine: tuple[str, str]) -> None:
    url, changes = engine
    can = capabilities_of(httpx.get(f"{url}/server_info", timeout=30).json())
    assert changes.endswith(f":{can.plugin}")
    assert not any("HEDDLE_PRIORITY_PORT" in sentence for sentence in can.missing)
    assert can.storage == "file"
