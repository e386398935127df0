"""What Heddle relies on in an engine: true of a genuine SGLang, and of the emulated one alike."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from engine_processes import Engine

# The first test of a kind waits for its engine to start.
pytestmark = pytest.mark.timeout(420)

TIMINGS = (
    "queue_time",
    "forward_entry_time",
    "prefill_finished_time",
    "request_received_ts",
    "request_finished_ts",
    "e2e_latency",
)


@pytest.fixture
def http(engine: Engine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=engine.url, timeout=60.0) as client:
        yield client


def prompt(start: int, tokens: int) -> list[int]:
    """Another *start* shares no prefix; all ids are inside the tiny model's vocabulary of 370.

    An id outside it ends a genuine engine: nothing checks it before the embedding's lookup.
    """
    return [10 + (start * 37 + i * 7 + (i * i) % 11) % 350 for i in range(tokens)]


def ask(http: httpx.Client, ids: list[int], new: int, **body: Any) -> dict[str, Any]:
    sampling = {"max_new_tokens": new, "ignore_eos": True}
    reply = http.post("/generate", json={"input_ids": ids, "sampling_params": sampling, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def events(http: httpx.Client, ids: list[int], new: int) -> list[str]:
    """The data lines of a streamed answer."""
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": new, "ignore_eos": True},
        "stream": True,
    }
    with http.stream("POST", "/generate", json=body) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        return [line.removeprefix("data: ") for line in reply.iter_lines() if line]


def test_an_answer_has_the_tokens_asked_for_and_says_why_it_ended(http: httpx.Client) -> None:
    answer = ask(http, prompt(1, 40), 12)
    meta = answer["meta_info"]
    assert len(answer["output_ids"]) == meta["completion_tokens"] == 12
    assert meta["prompt_tokens"] == 40
    assert meta["finish_reason"] == {"type": "length", "length": 12}
    assert isinstance(answer["text"], str)


def test_timings_come_in_the_order_of_a_steps_life(http: httpx.Client) -> None:
    meta = ask(http, prompt(2, 200), 8)["meta_info"]
    assert [name for name in TIMINGS if name not in meta] == []
    assert meta["request_received_ts"] <= meta["forward_entry_time"]
    assert meta["forward_entry_time"] < meta["prefill_finished_time"] < meta["request_finished_ts"]
    assert 0 <= meta["queue_time"] <= meta["e2e_latency"]
    parts = meta["request_finished_ts"] - meta["forward_entry_time"] + meta["queue_time"]
    # The rest is the HTTP server's and the tokenizer's: milliseconds, never negative.
    assert parts <= meta["e2e_latency"] + 0.01


def test_timings_are_unix_seconds(http: httpx.Client) -> None:
    before = time.time()
    meta = ask(http, prompt(3, 20), 2)["meta_info"]
    assert before - 1 <= meta["request_received_ts"] <= meta["request_finished_ts"]
    assert meta["request_finished_ts"] <= time.time() + 1


def test_a_request_id_is_echoed(http: httpx.Client) -> None:
    assert ask(http, prompt(4, 20), 2, rid="echo0-0-0")["meta_info"]["id"] == "echo0-0-0"


def test_priority_session_and_unknown_keys_are_accepted(http: httpx.Client) -> None:
    meta = ask(http, prompt(5, 20), 2, priority=7, session_id="t5", heddle={"x": 1})["meta_info"]
    assert meta["completion_tokens"] == 2
    assert meta["num_retractions"] == 0


def test_a_prefill_only_request_fills_the_cache_for_the_next_step(http: httpx.Client) -> None:
    context = prompt(6, 300)
    warm = ask(http, context, 0)
    assert warm["output_ids"] == []
    assert warm["meta_info"]["completion_tokens"] == 0
    step = ask(http, context + prompt(60, 30), 4)["meta_info"]
    assert step["cached_tokens"] == 300


def test_the_next_step_finds_prompt_and_output_in_the_cache(http: httpx.Client) -> None:
    context = prompt(7, 120)
    first = ask(http, context, 16)
    assert first["meta_info"]["cached_tokens"] == 0
    grown = context + first["output_ids"] + prompt(70, 40)
    second = ask(http, grown, 4)["meta_info"]
    # The last output token was sampled but never went through a forward pass.
    assert second["cached_tokens"] in (135, 136)
    assert second["prompt_tokens"] == 176


def test_a_stream_grows_and_closes_with_done(http: httpx.Client) -> None:
    *chunks, last = events(http, prompt(8, 50), 10)
    assert last == "[DONE]"
    parsed = [json.loads(chunk) for chunk in chunks]
    lengths = [chunk["meta_info"]["completion_tokens"] for chunk in parsed]
    assert lengths == sorted(lengths)
    assert all(chunk["meta_info"]["finish_reason"] is None for chunk in parsed[:-1])
    final = parsed[-1]
    assert len(final["output_ids"]) == final["meta_info"]["completion_tokens"] == 10
    assert final["meta_info"]["finish_reason"]["type"] == "length"
    assert [name for name in TIMINGS if name not in final["meta_info"]] == []


def test_an_abort_keeps_the_partial_output_and_its_cache(http: httpx.Client) -> None:
    context, answers = prompt(9, 64), []
    long = threading.Thread(
        target=lambda: answers.append(ask(http, context, 4000, rid="abort9-0-0"))
    )
    long.start()
    deadline = time.monotonic() + 30
    while long.is_alive() and time.monotonic() < deadline:
        time.sleep(0.5)
        assert http.post("/abort_request", json={"rid": "abort9-0-0"}).status_code == 200
    long.join(60)
    (answer,) = answers
    meta = answer["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    assert 0 < len(answer["output_ids"]) == meta["completion_tokens"] < 4000
    resumed = ask(http, context + answer["output_ids"], 2)["meta_info"]
    assert resumed["cached_tokens"] >= 64


def test_loads_say_what_the_controller_polls(http: httpx.Client) -> None:
    reply = http.get("/v1/loads", params={"include": "core,memory,queues"}).json()
    (load,) = reply["loads"]
    for name in ("num_running_reqs", "num_waiting_reqs", "num_used_tokens"):
        assert load[name] >= 0
    assert load["max_total_num_tokens"] > 0
    assert load["max_running_requests"] > 0
    assert 0 <= load["token_usage"] <= 1


def test_the_server_names_its_model_and_its_degree(http: httpx.Client) -> None:
    (model,) = http.get("/v1/models").json()["data"]
    assert model["id"]
    assert http.get("/server_info").json()["tp_size"] == 1


def test_chat_completes_and_hands_out_its_meta_info_when_asked(http: httpx.Client) -> None:
    body = {
        "model": "any",
        "messages": [{"role": "user", "content": "the quick brown fox"}],
        "max_tokens": 6,
        "ignore_eos": True,
        "return_meta_info": True,
        "rid": "chat10-0-0",
    }
    reply = http.post("/v1/chat/completions", json=body).json()
    assert reply["usage"]["completion_tokens"] == 6
    meta = reply["choices"][0]["meta_info"]
    assert meta["id"] == "chat10-0-0"
    assert [name for name in TIMINGS if name not in meta] == []


def test_a_wrong_body_is_refused_with_a_sentence(http: httpx.Client) -> None:
    body = {"input_ids": prompt(11, 5), "sampling_params": {"max_new_tokens": -5}}
    reply = http.post("/generate", json=body)
    assert reply.status_code == 400
    assert "max_new_tokens" in reply.text
