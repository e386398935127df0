"""A request that names nobody goes on with the one context that is its prefix, or with none."""

from __future__ import annotations

import aiohttp
from hypothesis import given
from hypothesis import strategies as st

from heddle.controller.dataplane.lineage import Line, Lineage

IDS = st.lists(st.integers(0, 30), min_size=1, max_size=12)


def raw(ids):
    return ", ".join(map(str, ids)).encode()


@given(st.lists(IDS, min_size=1, max_size=8), IDS)
def test_the_longest_true_prefix_wins_by_brute_force(contexts, request):
    lineage = Lineage()
    for number, context in enumerate(contexts):
        lineage.note(Line("r", f"t{number}", 0, "w0", 0), raw(context), None)
    fitting = [c for c in contexts if len(c) < len(request) and request[: len(c)] == c]
    # In bytes, as it is compared: of equal contexts all are found.
    longest = max(fitting, key=lambda c: len(raw(c)), default=None)
    wanted = {f"t{i}" for i, c in enumerate(contexts) if c == longest}
    assert {line.trajectory for line in lineage.find("r", raw(request), None)} == wanted
    assert lineage.find("other", raw(request), None) == []


def test_contexts_beyond_a_block_are_found_and_the_oldest_forgotten():
    lineage = Lineage(kept=2)
    contexts = [[k, *range(5000)] for k in range(3)]
    for number, context in enumerate(contexts):
        lineage.note(Line("r", f"t{number}", 0, "w0", 0), raw(context), None)
    found = [lineage.find("r", raw([*c, 7]), None) for c in contexts]
    assert [[line.trajectory for line in lines] for lines in found] == [[], ["t1"], ["t2"]]


async def say(http, path, body):
    async with http.post(path, json=body) as reply:
        said = await reply.json()
        out = reply.headers
        keys = ("X-Heddle-Trajectory-Id", "X-Heddle-Step", "X-Heddle-Worker", "X-Heddle-Identity")
        return said, tuple(out.get(k) for k in keys)


async def test_steps_without_a_name_become_one_trajectory_on_its_worker(stack):
    async with stack(engines=3) as s, aiohttp.ClientSession(s.url) as http:
        ids, seen = [5, 6, 7], []
        for n in (2, 3, 4):
            body = {"input_ids": ids, "sampling_params": {"max_new_tokens": n}}
            said, whose = await say(http, "/generate", body)
            seen.append(whose)
            ids = [*ids, *said["output_ids"], 99]
        spans = s.spans.of("chat")
    assert len({w[0] for w in seen}) == len({w[2] for w in seen}) == 1
    assert [w[1] for w in seen] == ["0", "1", "2"]
    assert [w[3] for w in seen] == [None, "lineage", "lineage"]
    assert [x["attributes"]["heddle.identity"] for x in spans] == [
        "anonymous",
        "lineage",
        "lineage",
    ]


async def test_two_chats_with_the_same_beginning_are_ambiguous_and_not_guessed(stack):
    first = [{"role": "user", "content": "hello"}]
    async with stack(engines=2) as s, aiohttp.ClientSession(s.url) as http:
        path = "/v1/chat/completions"
        one = (await say(http, path, {"messages": first}))[1]
        grown = [*first, {"role": "assistant", "content": "hi"}, {"role": "tool", "content": "x"}]
        two = (await say(http, path, {"messages": grown}))[1]
        await say(http, path, {"messages": first})
        await say(http, path, {"messages": first})
        three = (await say(http, path, {"messages": grown[:2] + first}))[1]
    assert (two[0], two[3]) == (one[0], "lineage")
    assert three[3] == "ambiguous"
    assert three[0] not in (one[0],)
