"""An OpenAI agent that sets its base URL alone, and a client of slime's shape, drive a rollout."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest
from controller_processes import COMMAND, Processes

from heddle.collector.client import CollectorClient
from heddle.controller import wire

STEPS = 3
SAMPLES = 2
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
    }
]


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """Collector, controller and two engines that register themselves, as slime's do."""
    with ExitStack() as exits:
        built = Processes(tmp_path_factory.mktemp("plugged"), exits)
        built.collector()
        names = ("w0", "w1")
        for name in names:
            built.engine(name)
        built.controller("--open-registration")
        for name in names:
            said = {"url": built.at(name), "worker_type": "regular"}
            assert httpx.post(built.at("controller", "/workers"), json=said).status_code == 202
        yield built


@dataclass
class Form:
    """One way in which a client may say whose step it is."""

    path: str = ""
    key: str = "none"
    headers: dict[str, str] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)


FORMS = {
    "headers": Form(headers={"X-Heddle-Trajectory-Id": "@"}),
    "extra-body": Form(more={"extra_body": {"heddle": {"trajectory_id": "@"}}}),
    "session": Form(more={"extra_body": {"session_id": "@"}}),
    "metadata": Form(more={"metadata": {"trajectory_id": "@"}}),
    "user": Form(more={"user": "@"}),
    "bearer": Form(key="@"),
    "path": Form(path="/t/@"),
    "": Form(),
}
"""By name; `@` stands for the trajectory's id, and the last one says nothing."""


class Agent:
    """The loop of an agent: ask with tools, run the tool, go on; streamed where told."""

    def __init__(self, stack, form, prompt, *, stream):
        url = f"{stack.at('controller')}{form.path}/v1"
        self.client = openai.AsyncOpenAI(
            base_url=url, api_key=form.key, default_headers=form.headers, max_retries=0
        )
        self.form, self.stream = form, stream
        self.messages: list[Any] = [{"role": "user", "content": prompt}]

    async def run(self):
        for index in range(STEPS):
            self.messages.append({"role": "assistant", "content": await self.say()})
            if index < STEPS - 1:
                await asyncio.sleep(0.1)
                self.messages.append({"role": "user", "content": f"found {index}"})
        await self.client.close()

    async def say(self):
        asked: Any = {
            "model": "any", "messages": self.messages, "tools": TOOLS, "max_tokens": 30,
            "stream": self.stream, **self.form.more,
        }  # fmt: skip
        answer: Any = await self.client.chat.completions.create(**asked)
        if not self.stream:
            return answer.choices[0].message.content
        return "".join([c.choices[0].delta.content or "" async for c in answer if c.choices])


def begun(stack, rollout, expected):
    asked = wire.RolloutBegin(run="default", rollout=rollout, expected=expected)
    stack.client().begin_rollout(asked)


@pytest.fixture(scope="module")
def agents(stack):
    """Every form twice, once streamed: two samples of one prompt."""
    begun(stack, "agents", SAMPLES * len(FORMS))

    async def all_of_them():
        made = [
            Agent(stack, sample(form, name, n), f"Fix the test of {name}.", stream=bool(n))
            for name, form in FORMS.items()
            for n in range(SAMPLES)
        ]
        await asyncio.gather(*(agent.run() for agent in made))

    asyncio.run(all_of_them())
    stack.client().end_rollout("default", "agents")
    return "agents"


def sample(form, name, number):
    """The form with the id of that sample."""
    text = json.dumps([form.path, form.key, form.headers, form.more])
    return Form(*json.loads(text.replace("@", f"{name}{number}")))


def rows(stack, query, wanted, **asked):
    deadline = time.monotonic() + 30
    with CollectorClient(stack.at("queries")) as client:
        while True:
            frame = client.query(query, run="default", limit=1000, **asked)
            if frame.height >= wanted and set(frame["state"]) == {"finished"}:
                return frame
            assert time.monotonic() < deadline, frame
            time.sleep(0.2)


def explained(stack, rollout):
    there = ["--collector", stack.at("queries"), "--run", "default", "--rollout", rollout]
    done = subprocess.run(
        [*COMMAND, "diagnose", "--json", *there], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def whole(stack, rollout, trajectories):
    """Every trajectory with its group, its steps and the tool calls between them."""
    found = rows(stack, "trajectories", trajectories, rollout=rollout)
    assert found.height == trajectories
    assert found["steps"].to_list() == [STEPS] * trajectories
    assert found["group_id"].null_count() == 0
    assert set(found.group_by("group_id").len()["len"]) == {SAMPLES}
    tools = rows(stack, "tool_calls", trajectories * (STEPS - 1), rollout=rollout)
    assert tools.height == trajectories * (STEPS - 1)
    assert tools["inferred"].all()
    steps = rows(stack, "steps", trajectories * STEPS, rollout=rollout)
    assert steps["error_type"].null_count() == steps.height
    return found


def test_every_form_of_an_openai_client_becomes_whole_trajectories(stack, agents):
    found = whole(stack, agents, SAMPLES * len(FORMS))
    named = {f"{name}{n}" for name in FORMS if name for n in range(SAMPLES)}
    assert named <= set(found["trajectory_id"])
    # Those that said nothing were followed by what they were answered.
    assert len(set(found["trajectory_id"]) - named) == SAMPLES


def test_diagnose_explains_the_agents_rollout(stack, agents):
    told = explained(stack, agents)
    accounts = told["accounts"]
    assert sum(row["gpu_ns"] for row in told["partition"]) == accounts["gpus"] * accounts["wall_ns"]
    assert {"busy_decode", "tool_wait"} <= {r["state"] for r in told["partition"] if r["gpu_ns"]}
    assert told["critical_path"]


async def slime_sample(http, session, prompt, number):
    """As slime's agent adapters generate: token ids, the session's key, a rid of their own."""
    ids = list(prompt)
    for turn in range(STEPS):
        body = {
            "input_ids": ids,
            "rid": f"{session}-{turn}",
            "sampling_params": {"max_new_tokens": 20 + number, "temperature": 1.0},
            "return_logprob": True,
        }
        reply = await http.post("/generate", json=body, headers={"X-SMG-Routing-Key": session})
        said = reply.json()
        assert said["meta_info"]["finish_reason"]["type"] in ("length", "stop")
        ids += [*said["output_ids"], 7, 8, 9]
        if turn < STEPS - 1:
            await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def slime(stack):
    """Two prompts of two samples each."""
    begun(stack, "slime", 2 * SAMPLES)

    async def all_of_them():
        async with httpx.AsyncClient(base_url=stack.at("controller"), timeout=60) as http:
            work = [
                slime_sample(http, f"sess{p}{n}", range(100 + p, 160 + p), n)
                for p in range(2)
                for n in range(SAMPLES)
            ]
            await asyncio.gather(*work)

    asyncio.run(all_of_them())
    stack.client().end_rollout("default", "slime")
    return "slime"


def test_a_client_of_slimes_shape_becomes_whole_trajectories(stack, slime):
    found = whole(stack, slime, 2 * SAMPLES)
    assert set(found["trajectory_id"]) == {f"sess{p}{n}" for p in range(2) for n in range(SAMPLES)}


def test_diagnose_explains_slimes_rollout(stack, slime):
    told = explained(stack, slime)
    assert told["accounts"]["gpus"] == 2
    assert {"busy_decode", "tool_wait"} <= {r["state"] for r in told["partition"] if r["gpu_ns"]}


async def test_a_request_is_aborted_by_its_rid_through_the_routers_address(stack):
    async with httpx.AsyncClient(base_url=stack.at("controller"), timeout=60) as http:
        body = {
            "input_ids": list(range(50)),
            "rid": "long-0",
            "sampling_params": {"max_new_tokens": 30_000, "ignore_eos": True},
        }
        asked = asyncio.ensure_future(
            http.post("/generate", json=body, headers={"X-SMG-Routing-Key": "long"})
        )
        while not (await http.post("/abort_request", json={"rid": "long-0"})).json()["running"]:
            await asyncio.sleep(0.05)
        said = (await asked).json()
    assert said["meta_info"]["finish_reason"]["type"] == "abort"
    listed = httpx.get(stack.at("controller", "/workers")).json()["workers"]
    assert {worker["url"] for worker in listed} == {stack.at("w0"), stack.at("w1")}
