"""What does Heddle rely on when it steers an engine, whichever kind it is?

Claims without an engine: a tier imports them and brings the fixtures `engine` and `http` (ordering
without preemption), `preempting` (two slots, preemption beyond a margin) and `weights` (a path it
can load).
"""

from __future__ import annotations

import time
from hashlib import blake2b
from typing import Any

import httpx
import orjson
import pytest
from contract_calls import (
    MARGIN,
    SLOTS,
    Engine,
    Going,
    ask,
    body_of,
    load,
    prompt,
    through_the_port,
    until,
)

from heddle.collector.prometheus import readings, series
from heddle.controller.errors import EngineLost
from heddle.controller.fleet.sglang import SglangEngine

METRICS = {
    "num_running_reqs", "num_queue_reqs", "token_usage", "num_used_tokens", "max_total_num_tokens",
    "prompt_tokens_total", "generation_tokens_total", "cached_tokens_total", "num_requests_total",
    "kv_available_tokens", "kv_evictable_tokens", "decode_sum_seq_lens", "new_token_ratio",
    "scheduler_idle_seconds_total",
}  # fmt: skip


def post(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    reply = http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json() if reply.content.startswith(b"{") else {}


def still(going: Going) -> int:
    """Its tokens once none came for a while."""
    seen = -1
    while seen != going.tokens:
        seen = going.tokens
        time.sleep(0.4)
    return seen


def test_a_pause_in_place_freezes_and_goes_on_without_loss(http: httpx.Client) -> None:
    long = Going(str(http.base_url), body_of(prompt(31, 40), 120, rid="freeze31")).begun(5)
    post(http, "/pause_generation", mode="in_place")
    late = Going(str(http.base_url), body_of(prompt(32, 10), 2, rid="late32"))
    frozen = still(long)
    assert long.alive
    assert late.alive
    assert 5 <= frozen < 120
    post(http, "/continue_generation")
    meta = long.end()["meta_info"]
    assert meta["completion_tokens"] == 120
    assert meta["num_retractions"] == 0
    assert late.end()["meta_info"]["completion_tokens"] == 2


def test_a_pause_that_retracts_gives_the_cache_free_and_loses_no_token(http: httpx.Client) -> None:
    long = Going(str(http.base_url), body_of(prompt(33, 40), 120, rid="retract33")).begun(5)
    post(http, "/pause_generation", mode="retract")
    still(long)
    assert http.post("/flush_cache").status_code == 200
    post(http, "/continue_generation")
    answer = long.end()
    assert len(answer["output_ids"]) == answer["meta_info"]["completion_tokens"] == 120
    assert answer["meta_info"]["num_retractions"] == 1


def test_a_pause_that_aborts_ends_all_and_holds_what_comes(http: httpx.Client) -> None:
    long = Going(str(http.base_url), body_of(prompt(34, 40), 4000, rid="paused34")).begun(5)
    post(http, "/pause_generation", mode="abort")
    answer = long.end()
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert 5 <= answer["meta_info"]["completion_tokens"] < 4000
    late = Going(str(http.base_url), body_of(prompt(35, 10), 3, rid="late35"))
    assert still(late) == 0
    assert late.alive
    post(http, "/continue_generation")
    assert late.end()["meta_info"]["completion_tokens"] == 3


def test_a_cache_in_use_is_not_flushed(http: httpx.Client) -> None:
    long = Going(str(http.base_url), body_of(prompt(36, 40), 4000, rid="flush36")).begun(5)
    assert http.post("/flush_cache").status_code == 400
    post(http, "/abort_request", rid="flush36")
    long.end()
    assert until(lambda: http.post("/flush_cache").status_code == 200)
    assert ask(http, prompt(36, 40), 1)["meta_info"]["cached_tokens"] == 0


def test_a_slowed_engine_sleeps_at_every_iteration_until_told_not_to(http: httpx.Client) -> None:
    post(http, "/slow_down", forward_sleep_time=0.1)
    slow = ask(http, prompt(37, 20), 11)["meta_info"]
    post(http, "/slow_down", forward_sleep_time=None)
    fast = ask(http, prompt(38, 20), 11)["meta_info"]
    # Eleven iterations; the sleep of the last may come after its token.
    assert slow["e2e_latency"] >= 1.0
    assert fast["e2e_latency"] < slow["e2e_latency"]


def test_new_weights_name_their_version_and_empty_the_cache(
    http: httpx.Client, weights: str
) -> None:
    context = prompt(39, 100)
    ask(http, context, 1)
    body = {"model_path": weights, "weight_version": "step-7"}
    assert post(http, "/update_weights_from_disk", **body)["success"] is True
    meta = ask(http, context, 1)["meta_info"]
    assert meta["weight_version"] == "step-7"
    assert meta["cached_tokens"] == 0
    assert http.get("/model_info").json()["weight_version"] == "step-7"
    post(http, "/update_weights_from_disk", **{**body, "weight_version": "default"})


def test_the_metrics_have_the_names_that_are_read(http: httpx.Client) -> None:
    ask(http, prompt(40, 10), 2)
    text = http.get("/metrics").text
    assert {line.name for line in series(text)} >= METRICS
    assert {"idle_s", "running", "queue", "kv_usage"} <= set(readings(text))


def test_an_engine_counts_the_seconds_in_which_it_had_nothing_to_do(http: httpx.Client) -> None:
    before = readings(http.get("/metrics").text)["idle_s"]
    # Counted once a second, and only while it does nothing.
    assert until(lambda: readings(http.get("/metrics").text)["idle_s"] > before)


@pytest.fixture
def full(preempting: Engine, request: pytest.FixtureRequest) -> list[Going]:
    """Both slots taken, one after the other, for longer than a test takes."""
    name = blake2b(request.node.name.encode(), digest_size=4).hexdigest()
    return [
        Going(preempting.url, body_of(prompt(50 + i, 24), 2500, rid=f"{name}-{i}")).begun(5)
        for i in range(SLOTS)
    ]


def ended(going: list[Going]) -> None:
    """Abort what a test leaves running."""
    for each in going:
        httpx.post(f"{each.url}/abort_request", json={"rid": each.body["rid"]}, timeout=60)
        each.end()


def test_the_queue_is_served_by_priority_and_then_by_age(
    preempting: Engine, full: list[Going]
) -> None:
    with httpx.Client(base_url=preempting.url, timeout=60.0) as http:
        # Slowed, so that those who block it do not end before the queue is full.
        post(http, "/slow_down", forward_sleep_time=0.05)
        done: list[str] = []
        bands = {"q-a": 0, "q-b": 20, "q-c": 90, "q-d": 20, "q-e": 90}
        queued: list[Going] = []
        for number, (rid, band) in enumerate(bands.items()):
            body = body_of(prompt(60 + number, 20), 24, rid=rid, priority=band)
            queued.append(Going(preempting.url, body, done=done))
            until(lambda n=number: load(http)["num_waiting_reqs"] == n + 1)
        # One slot alone: the order in which they end is the order of the queue.
        ended(full[:1])
        post(http, "/slow_down", forward_sleep_time=None)
        for each in queued:
            each.end()
        ended(full[1:])
    assert done == ["q-c", "q-e", "q-b", "q-d", "q-a"]
    assert [each.last["meta_info"]["num_retractions"] for each in queued] == [0] * 5


def test_an_abort_of_a_queued_request_ends_it_without_a_token(
    preempting: Engine, full: list[Going]
) -> None:
    queued = Going(preempting.url, body_of(prompt(72, 20), 5, rid="queued72"))
    with httpx.Client(base_url=preempting.url, timeout=60.0) as http:
        # An abort of whom the engine does not know yet is forgotten.
        until(lambda: load(http)["num_waiting_reqs"] == 1)
        assert still(queued) == 0
        post(http, "/abort_request", rid="queued72")
    meta = queued.end()["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    assert meta["completion_tokens"] == 0
    assert all(each.alive for each in full)
    ended(full)


def test_a_request_waits_unless_its_priority_is_beyond_the_margin(
    preempting: Engine, full: list[Going]
) -> None:
    done: list[str] = []
    body = body_of(prompt(70, 20), 2, rid="within70", priority=MARGIN)
    within = Going(preempting.url, body, done=done)
    with httpx.Client(base_url=preempting.url, timeout=60.0) as http:
        until(lambda: load(http)["num_waiting_reqs"] == 1)
    assert still(within) == 0
    assert all(each.alive for each in full)
    body = body_of(prompt(71, 20), 2, rid="beyond71", priority=MARGIN + 1)
    beyond = Going(preempting.url, body, done=done)
    # The newest of the lowest gives its slot away, to the one in the queue after that.
    beyond.end()
    within.end()
    assert done == ["beyond71", "within70"]
    # It keeps its tokens and goes on afterwards.
    full[1].begun(full[1].tokens + 5)
    ended(full)
    assert [each.last["meta_info"]["num_retractions"] for each in full] == [0, 1]
    assert len(full[1].last["output_ids"]) == full[1].last["meta_info"]["completion_tokens"]


def test_the_port_warms_observes_aborts_and_says_what_the_engine_can(engine: Engine) -> None:
    context = prompt(80, 90)

    async def use(port: SglangEngine) -> None:
        ids = ",".join(map(str, context)).encode()
        said = {"content-type": "application/json"}
        assert (await port.warm(ids, "warm80-0", said)).new_tokens == 90
        assert (await port.warm(ids, "warm80-1", said)).new_tokens == 1
        body = orjson.dumps(body_of([*context, 11], 1))
        reply = await port.send("/generate", body, {"content-type": "application/json"})
        assert orjson.loads(reply.body)["meta_info"]["cached_tokens"] == 90
        await port.abort("nobody-0")
        can = await port.capabilities()
        assert (can.degree, can.priority, can.metrics) == (1, True, True)
        assert (await port.observe()).kv_tokens == can.kv_tokens > 0
        assert can.max_running > SLOTS

    through_the_port(engine.url, use)


def test_the_port_knows_the_margin_and_the_slots(preempting: Engine) -> None:
    can = through_the_port(preempting.url, lambda port: port.capabilities())
    assert (can.margin, can.max_running) == (MARGIN, SLOTS)


def test_sleep_and_wake_are_done_or_said_to_be_impossible(engine: Engine) -> None:
    async def use(port: SglangEngine) -> None:
        can = await port.capabilities()
        assert can.memory_saver is not any("asleep" in sentence for sentence in can.missing)
        if can.memory_saver:
            await port.sleep()
            await port.wake()

    through_the_port(engine.url, use)
    with httpx.Client(base_url=engine.url, timeout=60.0) as http:
        assert ask(http, prompt(81, 10), 2)["meta_info"]["completion_tokens"] == 2


def test_the_port_says_of_nobody_that_it_is_lost() -> None:
    with pytest.raises(EngineLost, match="did not answer"):
        through_the_port("http://127.0.0.1:9", lambda port: port.observe())
