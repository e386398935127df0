"""What does Heddle rely on in an engine's answers, whichever kind it is?

Claims without an engine: a tier imports them and brings the fixture `http`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from contract_calls import Going, ask, body_of, load, prompt, until

TIMINGS = (
    "queue_time",
    "forward_entry_time",
    "prefill_finished_time",
    "request_received_ts",
    "request_finished_ts",
    "e2e_latency",
)


def events(http: httpx.Client, ids: list[int], new: int) -> list[str]:
    """The data lines of a streamed answer."""
    body = body_of(ids, new, stream=True)
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


def test_timings_are_unix_seconds_of_the_engines_clock(
    http: httpx.Client, now: Callable[[], float]
) -> None:
    before = now()
    meta = ask(http, prompt(3, 20), 2)["meta_info"]
    assert before - 1 <= meta["request_received_ts"] <= meta["request_finished_ts"]
    assert meta["request_finished_ts"] <= now() + 1


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
    context = prompt(9, 64)
    long = Going(str(http.base_url), body_of(context, 4000, rid="abort9-0-0")).begun(5)
    assert http.post("/abort_request", json={"rid": "abort9-0-0"}).status_code == 200
    answer = long.end()
    meta = answer["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    assert 5 <= len(answer["output_ids"]) == meta["completion_tokens"] < 4000
    resumed = ask(http, context + answer["output_ids"], 2)["meta_info"]
    # All of the prompt, and of the output all but at most the token that was under way.
    assert resumed["cached_tokens"] >= 64 + meta["completion_tokens"] - 2


def test_an_abort_of_no_live_id_stops_nothing(http: httpx.Client) -> None:
    long = Going(str(http.base_url), body_of(prompt(12, 16), 60, rid="dead12-1")).begun()
    assert http.post("/abort_request", json={"rid": "dead12"}).status_code == 200
    assert long.end()["meta_info"]["finish_reason"]["type"] == "length"


def test_an_abort_takes_every_request_whose_id_begins_so(http: httpx.Client) -> None:
    """Why ids must be free of prefixes: the scheduler matches by beginning."""
    url = str(http.base_url)
    short, long, other = (
        Going(url, body_of(prompt(13 + i, 16), 1500, rid=rid))
        for i, rid in enumerate(("pre13-1", "pre13-10", "pre13-2"))
    )
    for each in (short, long, other):
        each.begun()
    http.post("/abort_request", json={"rid": "pre13-1"})
    assert [x.end()["meta_info"]["finish_reason"]["type"] for x in (short, long)] == ["abort"] * 2
    assert other.alive
    http.post("/abort_request", json={"abort_all": True})
    assert other.end()["meta_info"]["finish_reason"]["type"] == "abort"


def test_an_id_that_is_live_is_refused(http: httpx.Client) -> None:
    long = Going(str(http.base_url), body_of(prompt(17, 16), 3000, rid="twice17")).begun()
    again = http.post("/generate", json=body_of(prompt(18, 16), 2, rid="twice17"))
    assert again.status_code == 400
    assert "Duplicate request ID" in again.text
    assert long.alive
    http.post("/abort_request", json={"rid": "twice17"})
    long.end()


def test_a_client_that_leaves_ends_its_request(http: httpx.Client) -> None:
    body = body_of(prompt(19, 16), 7000, stream=True, rid="gone19")
    with http.stream("POST", "/generate", json=body) as reply:
        next(reply.iter_lines())
    until(lambda: load(http)["num_running_reqs"] == 0)


def test_loads_say_what_the_controller_polls(http: httpx.Client) -> None:
    until(lambda: load(http)["num_running_reqs"] == 0)
    idle = load(http)
    assert idle["max_total_num_tokens"] > 0
    assert idle["max_running_requests"] > 0
    # The prefix cache is full of ended requests: what can be evicted is not used.
    assert idle["num_used_tokens"] == idle["token_usage"] == 0
    body = body_of(prompt(20, 400), 3000, rid="load20")
    long = Going(str(http.base_url), body).begun(20)
    busy = until(lambda: (now := load(http))["num_running_reqs"] and now)
    assert busy["num_running_reqs"] == 1
    assert busy["num_waiting_reqs"] == 0
    assert 400 <= busy["num_used_tokens"] <= 3500
    assert 0 < busy["token_usage"] < 1
    http.post("/abort_request", json={"rid": "load20"})
    long.end()


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


SAID = [{"role": "user", "content": "hi"}]
REFUSED = [
    ("/generate", {"sampling_params": {"max_new_tokens": -5}}, "max_new_tokens"),
    ("/generate", {"sampling_params": {"max_new_tokens": 1, "min_new_tokens": 5}}, "min_new_tok"),
    ("/generate", {"input_ids": [1.5, 2.5]}, "int"),
    ("/generate", {"input_ids": ["1", "2"]}, "int"),
    ("/generate", {"rid": 5}, "string"),
    ("/generate", {"stream": "no"}, "string|must be true or false"),
    ("/v1/chat/completions", {"messages": ["hi"]}, "messages"),
    ("/v1/chat/completions", {"messages": [{}]}, "role"),
    (
        "/v1/chat/completions",
        {"messages": SAID, "max_tokens": 1, "stream": True, "stream_options": 5},
        "stream_options",
    ),
    ("/slow_down", {"forward_sleep_time": []}, "forward_sleep_time"),
    ("/slow_down", {"forward_sleep_time": "x"}, "forward_sleep_time"),
    ("/pause_generation", {"mode": "nap"}, "mode"),
    ("/abort_request", {"rid": 5}, "string"),
    ("/release_memory_occupation", {"tags": [[1]]}, "tags"),
]


@pytest.mark.parametrize(("path", "wrong", "sentence"), REFUSED)
def test_a_wrong_body_is_refused_with_a_sentence(
    http: httpx.Client, path: str, wrong: dict[str, Any], sentence: str
) -> None:
    body = {"input_ids": prompt(11, 5), **wrong} if path == "/generate" else wrong
    reply = http.post(path, json=body)
    assert reply.status_code == 400
    assert re.search(sentence, reply.text)


def test_a_least_output_as_long_as_the_limit_is_an_exact_output(http: httpx.Client) -> None:
    """As a workload replays known lengths without the full reservation that ignore_eos gets."""
    sampling = {"max_new_tokens": 400, "min_new_tokens": 400}
    body = {"input_ids": prompt(21, 12), "sampling_params": sampling}
    assert http.post("/generate", json=body).json()["meta_info"]["completion_tokens"] == 400
