"""A stack as a person runs it: agents call it, it shows what runs, it ends when told."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
import time

import httpx
import psutil
import pytest

from heddle.app.driver import drive
from heddle.collector.client import CollectorClient
from heddle.collector.tracing import Emitter
from heddle.controller.clock import Clock
from heddle.controller.emulator.workload import StepSpec, TrajectorySpec


@pytest.fixture(scope="module")
def stack(up, tmp_path_factory):
    with up(tmp_path_factory.mktemp("up"), "--gpus", 2, "--speed", 20) as started:
        yield started


def chat(stack, trajectory, **more):
    body = {"model": "Qwen3-14B", "messages": [{"role": "user", "content": "hello"}], **more}
    headers = {"X-Heddle-Trajectory-Id": trajectory, "X-Heddle-Run": "chats"}
    url = f"{stack.controller}/v1/chat/completions"
    return httpx.post(url, json=body, headers=headers, timeout=60)


def eventually(question, within_s=30.0):
    deadline = time.monotonic() + within_s
    while not (answer := question()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return answer


def test_an_openai_style_call_is_answered_and_becomes_a_step(stack):
    reply = chat(stack, "c1", max_tokens=12)

    assert reply.status_code == 200
    assert reply.json()["choices"][0]["message"]["role"] == "assistant"
    assert reply.json()["usage"]["completion_tokens"] <= 12
    assert reply.headers["X-Heddle-Trajectory-Id"] == "c1"
    with CollectorClient(stack.queries) as client:
        steps = eventually(
            lambda: client.query("steps", run="chats", trajectory="c1", state="finished").to_dicts()
        )
    assert steps[0]["worker_id"] == reply.headers["X-Heddle-Worker"]
    assert steps[0]["output_tokens"] == reply.json()["usage"]["completion_tokens"]


def test_a_streamed_call_ends_with_done(stack):
    lines = [line for line in chat(stack, "c2", max_tokens=5, stream=True).text.split("\n") if line]

    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[0].removeprefix("data: "))["object"] == "chat.completion.chunk"


def test_a_trajectory_is_seen_while_it_runs(stack):
    steps = (StepSpec(100, 30, "bash", 600.0), StepSpec(10, 5, None, 0.0))
    spec = TrajectorySpec("slow", "g", 0, "math", steps)
    emitter = Emitter(stack.otlp, service="test")

    def play():
        work = drive(
            [spec],
            controller_url=stack.controller,
            emitter=emitter,
            run="seen",
            rollout="r",
            clock=Clock(time.time_ns(), 100.0),
        )
        results.append(asyncio.run(work))

    results = []
    thread = threading.Thread(target=play)
    thread.start()
    with CollectorClient(stack.queries) as client:
        running = eventually(
            lambda: client.query("trajectories", run="seen", state="running").to_dicts()
        )
        assert not results
        thread.join()
        emitter.close()
        # Steps come from the controller, the trajectory from its client: either may be first.
        eventually(lambda: client.query("steps", run="seen", state="finished").height == 2)
        held = client.query("trajectories", run="seen").to_dicts()
    assert running[0]["trajectory_id"] == "slow"
    assert held[0]["state"] == "finished"
    assert (held[0]["steps"], held[0]["tool_calls"], held[0]["output_tokens"]) == (2, 1, 35)


def test_a_policy_is_switched_with_its_reason_and_an_unknown_one_is_refused(stack, heddle):
    there = ("--controller", stack.controller, "--data", stack.data, "--run", "chats")
    changed = heddle("switch", "order=fcfs", "--why", "compare", "--json", *there)
    refused = heddle("switch", "order=sjf", *there)

    assert json.loads(changed.stdout)["switches"]["order"] == "fcfs"
    assert refused.returncode == 2
    assert refused.stderr.startswith("heddle: no order policy called 'sjf'; choose one of fcfs")
    with CollectorClient(stack.queries) as client:
        audited = eventually(lambda: client.query("switches", run="chats").to_dicts())
    assert (audited[0]["after"], audited[0]["why"]) == ("fcfs", "compare")

    back = heddle("switch", "--undo", "--json", *there)
    again = heddle("switch", "--undo", "order=fcfs", *there)
    nothing = heddle("switch", "--undo", *there[:-1], "nobody's")
    assert json.loads(back.stdout)["switches"]["order"] == audited[0]["before"] != "fcfs"
    assert "takes no changes beside it" in again.stderr
    assert 'nothing was switched for run "nobody\'s"' in nothing.stderr


def test_a_change_without_the_token_is_refused(stack):
    url = f"{stack.controller}/heddle/v1/switches"
    assert httpx.post(url, json={"order": "fcfs", "who": "x"}).status_code == 401


def test_a_report_holds_the_trajectory_and_needs_nothing_else(stack, heddle, tmp_path):
    chat(stack, "c3", max_tokens=3)
    with CollectorClient(stack.queries) as client:
        eventually(lambda: client.query("trajectories", run="chats", trajectory="c3").height)
    there = ("--collector", stack.queries)
    html = heddle("report", "chats", "c3", "--out", tmp_path / "c3.html", *there)
    unknown = heddle("report", "chats", "nobody", *there)

    page = (tmp_path / "c3.html").read_text()
    assert html.returncode == 0
    assert "c3" in page
    assert "<script" not in page
    assert unknown.returncode == 2
    assert "no trajectory 'nobody'" in unknown.stderr


def test_a_taken_port_is_named_with_what_to_do(stack, heddle, tmp_path):
    second = heddle("up", "--no-dashboard", "--data", tmp_path)

    assert second.returncode == 2
    port = stack.otlp.rpartition(":")[2]
    assert f"port {port}, wanted for the collector" in second.stderr
    assert "HEDDLE_PORTS__OTLP_HTTP" in second.stderr


def test_an_engine_that_does_not_answer_is_named(heddle, tmp_path):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        ended = heddle("up", "--worker", url, "--data", tmp_path)

    assert ended.returncode == 2
    assert f"no engine answers at {url}" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_every_process_ends_with_the_stack(up, stack, tmp_path, number):
    stack.stop()
    with up(tmp_path, "--gpus", 2, "--speed", 20) as second:
        family = second.family
        assert len(family) >= 4  # itself, collector, controller, at least one engine
        took_s = second.stop(number)
        _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
    assert took_s < 10
