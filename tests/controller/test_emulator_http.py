"""Does the HTTP face speak SGLang on a real socket?"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import orjson
import pytest

from heddle.controller.clock import Clock
from heddle.controller.emulator.errors import PortInUse
from heddle.controller.emulator.http import EngineApp, bind, make_server, serve
from heddle.controller.emulator.request import EngineConfig

SPEED = 50.0


@pytest.fixture(scope="module")
def client():
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    app = EngineApp(EngineConfig(kv_tokens=40_000), Clock(time.time_ns(), SPEED), port)
    server = make_server(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as made:
        yield made
    server.should_exit = True
    thread.join()
    listener.close()


def ids(size: int, new: int, first: int = 0, **more):
    sampling = {"max_new_tokens": new, "ignore_eos": True}
    return {"input_ids": list(range(first, first + size)), "sampling_params": sampling, **more}


def events(client, path, body):
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [orjson.loads(line) for line in lines[:-1]]


def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def waiting_or_running(client):
    return client.get("/v1/loads").json()["aggregate"]["total_reqs"]


def test_generate_returns_ids_and_every_field_of_meta_info(client):
    reply = client.post("/generate", json=ids(50, 20, rid="r-1")).json()
    assert len(reply["output_ids"]) == 20
    meta = reply["meta_info"]
    assert meta["id"] == "r-1"
    assert meta["finish_reason"] == {"type": "length", "length": 20}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (50, 20)
    received, entered = meta["request_received_ts"], meta["forward_entry_time"]
    assert received <= entered < meta["prefill_finished_time"] < meta["request_finished_ts"]
    assert meta["e2e_latency"] == pytest.approx(meta["request_finished_ts"] - received, abs=1e-5)
    assert {"queue_time", "num_retractions", "weight_version", "cached_tokens_details"} <= set(meta)


def test_a_stream_grows_to_the_same_ids_as_the_whole_reply(client):
    body = ids(60, 2000, first=5000, session_id="s1")
    made = events(client, "/generate", body)
    whole = client.post("/generate", json=body).json()
    sizes = [len(event["output_ids"]) for event in made]
    assert len(sizes) > 2
    assert sizes == sorted(sizes)
    assert made[-1]["output_ids"] == whole["output_ids"]
    assert made[0]["output_ids"] == whole["output_ids"][: sizes[0]]
    assert made[0]["meta_info"]["finish_reason"] is None
    assert whole["meta_info"]["cached_tokens"] == 59


def test_prefill_only_warms_the_next_step(client):
    assert client.post("/generate", json=ids(300, 0, first=9000)).json()["output_ids"] == []
    reply = client.post("/generate", json=ids(400, 1, first=9000)).json()
    assert reply["meta_info"]["cached_tokens"] == 300


def test_a_chat_that_grows_shares_its_prefix(client):
    messages = [{"role": "user", "content": "How long is a loom?"}]
    first = client.post(
        "/v1/chat/completions", json={"messages": messages, "model": "Qwen3-14B"}
    ).json()
    said = first["choices"][0]["message"]["content"]
    messages += [
        {"role": "assistant", "content": said},
        {"role": "user", "content": "And a heddle?"},
    ]
    body = {"messages": messages, "max_tokens": 7, "return_meta_info": True}
    second = client.post("/v1/chat/completions", json=body).json()
    total = first["usage"]["total_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == total - 1
    assert second["choices"][0]["meta_info"]["completion_tokens"] <= 7


def test_a_chat_stream_spells_the_whole_answer_and_ends_with_usage(client):
    body = {"messages": [{"role": "user", "content": "weave"}], "ignore_eos": True}
    body |= {"max_tokens": 900, "stream_options": {"include_usage": True}}
    made = events(client, "/v1/chat/completions", body)
    whole = client.post("/v1/chat/completions", json=body).json()
    text = "".join(c["delta"].get("content", "") for e in made for c in e["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert made[-2]["choices"][0]["finish_reason"] == "length"
    assert made[-1]["usage"]["completion_tokens"] == 900


def test_completions_take_text_or_ids(client):
    for prompt in ("abc", [97, 98, 99]):
        reply = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 4}).json()
        assert reply["usage"]["prompt_tokens"] == 3
        assert reply["object"] == "text_completion"


def test_an_abort_answers_the_request_with_what_it_had(client):
    replies = []
    body = ids(50, 30_000, first=20_000, rid="long")
    thread = threading.Thread(
        target=lambda: replies.append(
            httpx.post(f"{client.base_url}/generate", json=body, timeout=30)
        )
    )
    thread.start()
    until(lambda: waiting_or_running(client) > 0)
    assert client.post("/abort_request", json={"rid": "lon"}).status_code == 200
    assert waiting_or_running(client) == 1
    assert client.post("/abort_request", json={"rid": "long"}).status_code == 200
    thread.join()
    meta = replies[0].json()["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    assert 0 < meta["completion_tokens"] < 30_000


def test_a_client_that_leaves_aborts_its_request(client):
    body = ids(50, 30_000, first=21_000, stream=True)
    with client.stream("POST", "/generate", json=body) as response:
        next(response.iter_lines())
    until(lambda: waiting_or_running(client) == 0)


def test_pausing_blocks_new_requests_until_continue(client):
    assert client.post("/pause_generation", json={"mode": "in_place"}).json()["status"] == "ok"
    replies = []
    thread = threading.Thread(
        target=lambda: replies.append(httpx.post(f"{client.base_url}/generate", json=ids(5, 2)))
    )
    thread.start()
    until(lambda: waiting_or_running(client) == 1)
    assert replies == []
    client.post("/continue_generation", json={})
    thread.join()
    assert replies[0].status_code == 200
    bad = client.post("/pause_generation", json={"mode": "nap"})
    assert (bad.status_code, "abort, retract, in_place" in bad.text) == (400, True)


@pytest.mark.parametrize("mode", ["in_place", "retract", "abort"])
def test_once_a_pause_is_answered_no_iteration_is_under_way(client, mode):
    """At 0.2 s an iteration: new weights came too early for what was paused a moment ago."""
    client.post("/slow_down", json={"forward_sleep_time": 10.0})
    with ThreadPoolExecutor() as pool:
        going = pool.submit(client.post, "/generate", json=ids(20, 200, 100))
        until(lambda: waiting_or_running(client) == 1)
        client.post("/pause_generation", json={"mode": mode})
        update = client.post("/update_weights_from_disk", json={"model_path": "/ckpt/4"})
        client.post("/slow_down", json={"forward_sleep_time": 0})
        client.post("/continue_generation", json={})
        meta = going.result().json()["meta_info"]
    assert update.status_code == 200, update.text
    assert meta["num_retractions"] == (mode == "retract")
    assert meta["finish_reason"]["type"] == ("abort" if mode == "abort" else "length")
    assert (meta["completion_tokens"] < 200) == (mode == "abort")


def test_weights_sleep_and_wake_leave_the_engine_serving(client):
    update = client.post("/update_weights_from_disk", json={"model_path": "/ckpt/3"})
    assert update.json()["success"] is True
    assert client.get("/model_info").json()["weight_version"] == "/ckpt/3"
    assert client.post("/release_memory_occupation", json={}).status_code == 200
    assert client.post("/resume_memory_occupation", json={"tags": ["weights"]}).status_code == 200
    assert client.post("/resume_memory_occupation", json={}).status_code == 200
    assert (
        client.post("/generate", json=ids(5, 2)).json()["meta_info"]["weight_version"] == "/ckpt/3"
    )


@pytest.mark.parametrize(
    ("path", "content", "sentence"),
    [
        ("/generate", b"{", "not JSON"),
        ("/generate", b"[]", "must be a JSON object"),
        ("/generate", b"{}", "should be provided"),
        ("/generate", b'{"input_ids": ["a"]}', "list of token ids"),
        ("/generate", b'{"input_ids": [[1], [2]]}', "one prompt a request"),
        (
            "/generate",
            b'{"text": "x", "sampling_params": {"max_new_tokens": -1}}',
            "max_new_tokens",
        ),
        ("/generate", orjson.dumps({"input_ids": [1] * 40_000}), "longer than the model's context"),
        ("/v1/chat/completions", b'{"messages": []}', "non-empty list"),
        ("/generate", b'{"input_ids": [true, false]}', "list of token ids"),
        ("/generate", b'{"input_ids": [-1, 5]}', "from 0 to"),
        ("/generate", b'{"input_ids": [2147483648]}', "from 0 to"),
        ("/generate", b'{"text": "x", "sampling_params": {"n": 2}}', "one sample a request"),
        ("/v1/completions", b'{"prompt": "x", "n": 2}', "one sample a request"),
        ("/v1/completions", b'{"prompt": ["1"]}', "list of token ids"),
        ("/release_memory_occupation", b'{"tags": ["soul"]}', "cuda_graph, kv_cache, weights"),
        ("/release_memory_occupation", b'{"tags": [{}]}', "cuda_graph, kv_cache, weights"),
        ("/slow_down", b'{"forward_sleep_time": 1e308}', "at most 600"),
        ("/set_trace_level", orjson.dumps({"level": "9" * 5000}), "at most 9 digits"),
    ],
)
def test_what_cannot_be_served_is_a_400_with_a_sentence(client, path, content, sentence):
    response = client.post(path, content=content)
    assert response.status_code == 400
    assert sentence in response.text


def test_any_model_name_is_served(client):
    body = {"model": "gpt-9", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    assert client.post("/v1/chat/completions", json=body).status_code == 200


def test_unknown_paths_and_methods_are_404_and_405(client):
    assert client.get("/nothing").status_code == 404
    assert client.get("/abort_request").status_code == 405
    assert client.get("/generate").status_code == 405


def test_server_info_loads_and_metrics_agree(client):
    info = client.get("/server_info").json()
    (load,) = client.get("/v1/loads").json()["loads"]
    assert info["max_total_num_tokens"] == load["max_total_num_tokens"] == 40_000
    assert len(info["truth_hash"]) == 12
    text = client.get("/metrics").text
    assert (
        'sglang:max_total_num_tokens{model_name="Qwen3-14B",tp_rank="0",worker="w0"} 40000' in text
    )
    assert client.get("/v1/models").json()["data"][0]["id"] == "Qwen3-14B"


def test_a_port_in_use_is_one_sentence():
    taken = bind("127.0.0.1", 0)
    with taken, pytest.raises(PortInUse, match="choose another --port"):
        serve(EngineConfig(), port=taken.getsockname()[1])
