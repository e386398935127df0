"""Does `heddle up --worker URL` steer a genuine SGLang, and does the store then say what happened?

Small numbers: the engine is a toy. What is checked is that every fact reaches the store from a real
engine's own timings, not from the emulator's.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import polars as pl
import pytest
from contract_calls import Engine
from engine_processes import HEDDLE, free_port
from heddle_stack import Stack, stack_of

from heddle.collector.client import CollectorClient
from heddle.collector.tracing import Emitter, Tracer, Trajectory

pytestmark = pytest.mark.timeout(600)

RUN = "on-sglang"
GROUPS, SAMPLES, STEPS = 2, 3, 3
PROMPT, OBSERVATION, OUTPUT = 96, 24, 16
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
    }
]


@pytest.fixture(scope="module")
def stack(sglang: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with stack_of([sglang.url], tmp_path_factory.mktemp("stack")) as made:
        yield made


def ids(count: int, start: int) -> list[int]:
    """Inside the tiny vocabulary of 370."""
    return [10 + (start * 41 + i * 7) % 350 for i in range(count)]


Step = Callable[[httpx.Client, Trajectory, int, int], None]


def rollout(stack: Stack, name: str, agent: Callable[[], Step]) -> None:
    """Every trajectory in a thread of its own, between begin and end of a rollout."""
    expected = GROUPS * SAMPLES
    begun = stack.post("/rollouts", run=RUN, rollout=name, kind="train", expected=expected)
    assert begun["layout"] == [1]
    emitter = Emitter(stack.spans, service="test-agent")
    tracer = Tracer(emitter, RUN, name)

    def one(number: int) -> None:
        group, sample = divmod(number, SAMPLES)
        step = agent()
        with (
            httpx.Client(base_url=stack.controller, timeout=120.0) as http,
            tracer.trajectory(
                f"{name}-t{number}", group=f"g{group}", sample_index=sample, task="toy"
            ) as trajectory,
        ):
            for index in range(STEPS):
                step(http, trajectory, group, index)
                if index < STEPS - 1:
                    with trajectory.tool("sleep", step=index):
                        time.sleep(0.05)

    with ThreadPoolExecutor(expected) as pool:
        list(pool.map(one, range(expected)))
    emitter.flush()
    stack.post(f"/rollouts/{name}/end", run=RUN)
    emitter.close()
    assert emitter.dropped == 0


def generate_agent() -> Step:
    """Token-in, token-out: the context grows by what was sampled and by an observation."""
    context: list[int] = []

    def step(http: httpx.Client, trajectory: Trajectory, group: int, index: int) -> None:
        context.extend(ids(OBSERVATION, index + 90) if index else ids(PROMPT, group))
        body = {
            "input_ids": context,
            "sampling_params": {"max_new_tokens": OUTPUT, "ignore_eos": True},
        }
        headers = trajectory.headers(step=index, final=index == STEPS - 1)
        reply = http.post("/generate", json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        assert reply.headers["X-Heddle-Trajectory-Id"] == trajectory.id
        assert reply.headers["X-Heddle-Step"] == str(index)
        context.extend(reply.json()["output_ids"])

    return step


def chat_agent() -> Step:
    """An OpenAI client's loop, every other step streamed."""
    messages = [{"role": "system", "content": "def main(): return 0"}]

    def step(http: httpx.Client, trajectory: Trajectory, group: int, index: int) -> None:
        messages.append({"role": "user", "content": f"trajectory step reward {group} {index}"})
        body = {
            "model": "any",
            "messages": messages,
            "max_tokens": OUTPUT,
            "ignore_eos": True,
            "stream": index % 2 == 1,
        }
        headers = trajectory.headers(step=index, final=index == STEPS - 1)
        reply = http.post("/v1/chat/completions", json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        if body["stream"]:
            assert reply.text.rstrip().endswith("data: [DONE]")
            messages.append({"role": "assistant", "content": "the lazy dog"})
        else:
            messages.append(reply.json()["choices"][0]["message"])

    return step


def settled(
    stack: Stack, query: str, name: str, rows: int, state: str, *, run: str = RUN
) -> pl.DataFrame:
    """The rows once they have all arrived: spans travel in batches."""
    deadline = time.monotonic() + 30
    with CollectorClient(stack.queries) as client:
        while True:
            frame = client.query(query, run=run, rollout=name, limit=1000)
            if frame.height >= rows and set(frame["state"]) == {state}:
                return frame
            assert time.monotonic() < deadline, frame
            time.sleep(0.2)


@pytest.fixture(scope="module")
def generated(stack: Stack) -> str:
    rollout(stack, "generate", generate_agent)
    return "generate"


@pytest.fixture(scope="module")
def chatted(stack: Stack) -> str:
    rollout(stack, "chat", chat_agent)
    return "chat"


def test_the_store_holds_every_step_of_a_generate_rollout(stack: Stack, generated: str) -> None:
    steps = settled(stack, "steps", generated, GROUPS * SAMPLES * STEPS, "finished")
    assert steps.height == GROUPS * SAMPLES * STEPS
    assert steps["output_tokens"].to_list() == [OUTPUT] * steps.height
    grown = steps.sort("trajectory_id", "step_index")["input_tokens"].to_list()
    assert grown == [PROMPT, PROMPT + 40, PROMPT + 80] * (GROUPS * SAMPLES)
    assert steps["worker_id"].n_unique() == 1
    assert set(steps["degree"]) == {1}


def test_a_steps_parts_are_the_engines_own_and_fit_inside_it(stack: Stack, generated: str) -> None:
    steps = settled(stack, "steps", generated, GROUPS * SAMPLES * STEPS, "finished")
    for part in ("held_ns", "queue_ns", "prefill_ns", "decode_ns"):
        assert steps[part].null_count() == 0
        assert (steps[part] >= 0).all()
    assert (steps["prefill_ns"] > 0).all()
    assert (steps["decode_ns"] > 0).all()
    whole = steps["end_ns"] - steps["start_ns"]
    parts = steps["held_ns"] + steps["queue_ns"] + steps["prefill_ns"] + steps["decode_ns"]
    assert (parts <= whole).all()


def test_later_steps_find_their_context_cached(stack: Stack, generated: str) -> None:
    steps = settled(stack, "steps", generated, GROUPS * SAMPLES * STEPS, "finished")
    later = steps.filter(pl.col("step_index") > 0)
    before = PROMPT + (later["step_index"] - 1) * (OBSERVATION + OUTPUT)
    # All of the previous context; of its output at most the last token is not in the cache.
    assert (later["cached_tokens"] >= before + OUTPUT - 1).all()
    assert (later["cached_tokens"] < later["input_tokens"]).all()


def test_trajectories_and_tool_calls_are_whole(stack: Stack, generated: str) -> None:
    trajectories = settled(stack, "trajectories", generated, GROUPS * SAMPLES, "finished")
    assert trajectories["steps"].to_list() == [STEPS] * (GROUPS * SAMPLES)
    assert set(trajectories["group_id"]) == {"g0", "g1"}
    calls = settled(stack, "tool_calls", generated, GROUPS * SAMPLES * (STEPS - 1), "finished")
    assert calls.height == GROUPS * SAMPLES * (STEPS - 1)
    assert not calls["inferred"].any()


def test_gpu_time_of_the_rollout_sums_exactly(stack: Stack, generated: str) -> None:
    settled(stack, "rollouts", generated, 1, "finished")
    with CollectorClient(stack.queries) as client:
        accounts = client.query("accounts", run=RUN, rollout=generated).row(0, named=True)
        partition = client.query("partition", run=RUN, rollout=generated)
    assert accounts["gpus"] == 1
    assert partition["gpu_ns"].sum() == accounts["wall_ns"] * accounts["gpus"]
    busy = partition.filter(pl.col("state").str.starts_with("busy"))
    assert busy["gpu_ns"].sum() > 0


def test_the_store_holds_every_step_of_a_chat_rollout(stack: Stack, chatted: str) -> None:
    steps = settled(stack, "steps", chatted, GROUPS * SAMPLES * STEPS, "finished")
    assert steps.height == GROUPS * SAMPLES * STEPS
    assert steps["output_tokens"].to_list() == [OUTPUT] * steps.height
    assert (steps["input_tokens"] > 0).all()
    later = steps.filter(pl.col("step_index") > 0)
    # Streamed chat says so in its usage alone, and only under --enable-cache-report.
    assert (later["cached_tokens"] > 0).all()


def test_streamed_chat_is_timed_by_what_the_controller_saw(stack: Stack, chatted: str) -> None:
    steps = settled(stack, "steps", chatted, GROUPS * SAMPLES * STEPS, "finished")
    streamed = steps.filter(pl.col("step_index") % 2 == 1)
    # SGLang puts no meta_info into a chat stream: first and last chunk are what is left.
    assert (streamed["prefill_ns"] + streamed["decode_ns"] > 0).all()


def test_an_unreachable_worker_is_one_sentence(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    command = [HEDDLE, "up", "--worker", url, "--data", tmp_path, "--no-dashboard"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode != 0
    assert url in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def agents(stack: Stack) -> str:
    """An `openai` agent that sets its base URL alone: named by path, tools between its steps."""
    expected = GROUPS * SAMPLES
    run = {"run": "default", "rollout": "agents"}
    stack.post("/rollouts", **run, kind="train", expected=expected)

    def one(number: int) -> None:
        url = f"{stack.controller}/t/agent{number}/v1"
        messages: list[Any] = [{"role": "user", "content": f"agent step {number // SAMPLES}"}]
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            for index in range(STEPS):
                messages.append({"role": "assistant", "content": said_by(client, messages, index)})
                time.sleep(0.05)
                messages.append({"role": "user", "content": f"call result {index}"})

    with ThreadPoolExecutor(expected) as pool:
        list(pool.map(one, range(expected)))
    stack.post("/rollouts/agents/end", run="default")
    return "agents"


def said_by(client: openai.OpenAI, messages: list[Any], index: int) -> str:
    """One answer, every other one streamed."""
    extra = {"ignore_eos": True}
    asked: dict[str, Any] = {"model": "any", "messages": messages, "max_tokens": OUTPUT}
    if index % 2:
        stream = client.chat.completions.create(**asked, extra_body=extra, stream=True)
        return "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
    whole = client.chat.completions.create(**asked, tools=TOOLS, extra_body=extra)
    return whole.choices[0].message.content or ""


def test_an_openai_agent_on_a_genuine_engine_is_whole_and_explained(
    stack: Stack, agents: str
) -> None:
    expected = GROUPS * SAMPLES
    settled(stack, "steps", agents, expected * STEPS, "finished", run="default")
    # Until the rollout's own span has come, each question is answered up to its own second.
    settled(stack, "rollouts", agents, 1, "finished", run="default")
    asked: dict[str, Any] = {"run": "default", "rollout": agents}
    with CollectorClient(stack.queries) as client:
        trajectories = client.query("trajectories", **asked)
        calls = client.query("tool_calls", **asked)
        partition = client.query("partition", **asked)
        accounts = client.query("accounts", **asked).row(0, named=True)
    assert trajectories["steps"].to_list() == [STEPS] * expected
    assert sorted(trajectories.group_by("group_id").len()["len"]) == [SAMPLES] * GROUPS
    assert calls.height == expected * (STEPS - 1)
    assert partition["gpu_ns"].sum() == accounts["wall_ns"] * accounts["gpus"]
