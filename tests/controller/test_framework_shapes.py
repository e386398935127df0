"""What each framework sends unpatched, by the shape of its requests: whose steps are they?

The shapes are those that reading the frameworks' clients gave (slime, Dressage, Relax, SkyRL,
AReaL, Agent Lightning, ThunderAgent); docs/integrations says which line gives the rest.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

CHAT = "/v1/chat/completions"
SAMPLING = {"temperature": 1.0, "max_new_tokens": 4}
PROMPT = list(range(100, 150))


class Client:
    """One agent of a framework; its context grows by what it is answered."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.http = http
        self.ids = list(PROMPT)
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": "Fix the test."}]

    async def generate(self, headers: dict[str, str] | None = None, **more: Any) -> None:
        """Token ids in, as trainers' own rollouts send them."""
        body = {"input_ids": self.ids, "sampling_params": SAMPLING, "return_logprob": True, **more}
        said = await self.post("/generate", body, headers)
        self.ids = [*self.ids, *said["output_ids"], 7, 8]

    async def chat(
        self, path: str = CHAT, headers: dict[str, str] | None = None, **more: Any
    ) -> None:
        """Messages in, as agents send them."""
        body = {"model": "m", "messages": self.messages, "max_tokens": 8, **more}
        said = await self.post(path, body, headers)
        call = said["choices"][0]["message"]
        self.messages += [{"role": "assistant", **call}, {"role": "user", "content": "go on"}]

    async def post(self, path: str, body: Any = None, headers: Any = None) -> Any:
        """The answer to it, which is a good one."""
        async with self.http.post(path, json=body or {}, headers=headers) as reply:
            assert reply.status == 200, await reply.text()
            return await reply.json()


@pytest.fixture
def told(stack):
    """`async with told() as (client, s)`: who is heard by a controller with two engines."""

    @asynccontextmanager
    async def begun():
        async with stack(engines=2) as s, aiohttp.ClientSession(s.url) as http:
            yield Client(http), s

    return begun


def steps(s):
    """Trajectory, group and number of each step, in their order."""
    names = ("gen_ai.conversation.id", "heddle.group.id", "heddle.step.index")
    return [tuple(span["attributes"].get(name) for name in names) for span in s.spans.of("chat")]


def ended(s):
    return [x["attributes"]["gen_ai.conversation.id"] for x in s.spans.of("invoke_agent")]


async def test_slime_without_a_key_is_followed_by_its_tokens_and_grouped_by_its_prompt(told):
    async with told() as (one, s):
        two = Client(one.http)
        await one.generate()
        await one.generate()
        two.ids = [*PROMPT[:-1], 9]
        await two.generate()
    first, second, other = steps(s)
    assert (first[0], first[2], second[2]) == (second[0], 0, 1)
    assert other[0] != first[0]
    assert first[1] == second[1] != other[1]


async def test_slimes_adapters_and_dressage_name_a_session_and_a_request(told):
    async with told() as (one, s):
        for turn in range(2):
            headers = {"X-SMG-Routing-Key": "sess-1"}
            await one.generate(headers, rid=f"sess-1-{turn}")
        # The line that forwards Dressage's instance and turn.
        more = {"X-SMG-Routing-Key": "sess-2", "X-Instance-Id": "swe-12", "X-Turn-Id": "4"}
        await one.generate(more, rid="anything")
    assert [(t, n) for t, _, n in steps(s)] == [("sess-1", 0), ("sess-1", 1), ("sess-2", 4)]
    assert steps(s)[2][1] == "swe-12"


async def test_relax_names_a_session_in_the_body_and_closes_it(told):
    async with told() as (one, s):
        await one.generate(session_id="relax-1")
        await Client(one.http).chat(headers={"Authorization": "Bearer relax-2"})
        async with one.http.get("/workers") as reply:
            workers = (await reply.json())["workers"]
        async with one.http.get("/list_workers") as reply:
            urls = (await reply.json())["urls"]
        assert (await one.post("/close_session", {"session_id": "relax-1"})) == {"known": True}
        closed = [raw for engine in s.engines for raw in engine.raw if b"session_id" in raw]
    assert [t for t, _, _ in steps(s)] == ["relax-1", "relax-2"]
    assert [w["url"] for w in workers] == urls
    assert ended(s) == ["relax-1"]
    # Every engine may let the session's prefix go.
    assert sum(raw == b'{"session_id":"relax-1"}' for raw in closed) == len(urls)


async def test_skyrls_session_is_trajectory_and_group_and_its_end_is_told(told):
    async with told() as (one, s):
        for _ in range(2):
            await one.chat(headers={"X-Session-ID": "django_12_3"})
        await Client(one.http).chat(headers={"X-Session-ID": "django_12_4"})
        async with one.http.post("/finish_session", params={"session_id": "django_12_3"}) as said:
            assert await said.json() == {"known": True}
    assert steps(s) == [
        ("django_12_3", "django_12", 0),
        ("django_12_3", "django_12", 1),
        ("django_12_4", "django_12", 0),
    ]
    assert ended(s) == ["django_12_3"]


async def test_areals_engine_is_followed_by_its_tokens_and_its_agents_by_their_key(told):
    async with told() as (one, s):
        for _ in range(3):
            await one.generate(image_data=[], stream=False)
        agent = Client(one.http)
        for _ in range(2):
            await agent.chat(headers={"Authorization": "Bearer sk-sess-41"})
        # The line that names it.
        await one.generate(session_id="rid-of-areal")
    found = steps(s)
    assert len({t for t, _, _ in found[:3]}) == 1
    assert [n for _, _, n in found[:3]] == [0, 1, 2]
    assert [(t, n) for t, _, n in found[3:5]] == [("sk-sess-41", 0), ("sk-sess-41", 1)]
    assert found[5][0] == "rid-of-areal"


async def test_agent_lightnings_path_names_an_attempt_and_its_gateway_is_followed(told):
    gateway = "/proxy/rollout/ro-1/attempt/at-2/mode/train/openai" + CHAT
    async with told() as (one, s):
        for _ in range(2):
            await one.chat(gateway)
        # Behind its gateway nothing but the messages arrives, and then with its one line.
        behind = Client(one.http)
        behind.messages = [{"role": "user", "content": "Another one."}]
        for _ in range(2):
            await behind.chat()
        await behind.chat(headers={"X-Heddle-Trajectory-Id": "ro-9.at-1"})
    found = steps(s)
    assert [(t, n) for t, _, n in found[:2]] == [("ro-1.at-2", 0), ("ro-1.at-2", 1)]
    assert found[2][0] == found[3][0]
    assert [n for _, _, n in found[2:4]] == [0, 1]
    assert found[4][0] == "ro-9.at-1"


async def test_thunderagents_program_is_the_trajectory_until_it_is_released(told):
    async with told() as (one, s):
        for _ in range(2):
            await one.chat(program_id="program-7")
        assert await one.post("/programs/release", {"program_id": "program-7"}) == {"known": True}
    assert [(t, n) for t, _, n in steps(s)] == [("program-7", 0), ("program-7", 1)]
    assert ended(s) == ["program-7"]
