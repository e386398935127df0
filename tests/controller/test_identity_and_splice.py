"""Whose request it is, in the documented order; and a spliced body equals a parsed one."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.collector.tracing import Emitter, Tracer
from heddle.controller.dataplane.identity import Request, resolve, strip_prefix
from heddle.controller.dataplane.splice import split
from heddle.controller.errors import BadRequest

LADDER = [
    ("X-Heddle-Trajectory-Id", {"x-heddle-trajectory-id": "h"}, {}),
    ("X-SMG-Routing-Key", {"x-smg-routing-key": "k"}, {}),
    ("X-Session-Id", {"x-session-id": "s"}, {}),
    ("session_id", {}, {"session_id": "b"}),
    ("program_id", {}, {"program_id": "p"}),
    ("extra_body.program_id", {}, {"extra_body": {"program_id": "e"}}),
    ("metadata.session_id", {}, {"metadata": {"session_id": "m"}}),
    ("authorization", {"authorization": "Bearer sid"}, {}),
    ("user", {}, {"user": "u"}),
    ("rid", {}, {"rid": "traj-7"}),
]


def test_the_first_rule_that_finds_an_id_wins_in_the_documented_order():
    for at in range(len(LADDER)):
        headers, body = {}, {}
        for _, more_headers, more_body in reversed(LADDER[at:]):
            headers |= more_headers
            body = {**body, **more_body}
        assert resolve(Request(headers, "/generate", body)).source == LADDER[at][0]


def test_a_path_prefix_names_the_trajectory_and_is_taken_off():
    path = "/t/traj 1/v1/chat/completions"
    assert resolve(Request({}, path, {})).trajectory == "traj 1"
    assert strip_prefix(path) == "/v1/chat/completions"
    attempt = "/rollout/r9/attempt/2/v1/completions"
    assert resolve(Request({}, attempt, {})).trajectory == "r9.2"
    assert strip_prefix(attempt) == "/v1/completions"


def test_rid_lineage_gives_trajectory_and_step_and_a_header_step_wins():
    whose = resolve(Request({}, "/generate", {"rid": "a-b-12"}))
    assert (whose.trajectory, whose.step) == ("a-b", 12)
    assert resolve(Request({"x-heddle-step": "3"}, "/generate", {"rid": "a-12"})).step == 3


@pytest.mark.parametrize("bearer", ["EMPTY", "sk-123", "the-api-key", ""])
def test_an_api_key_is_no_session(bearer):
    request = Request(
        {"authorization": f"Bearer {bearer}"}, "/generate", {}, frozenset({"the-api-key"})
    )
    assert resolve(request).is_anonymous


def test_two_anonymous_requests_are_two_trajectories():
    one, two = (resolve(Request({}, "/generate", {})) for _ in range(2))
    assert one.is_anonymous
    assert one.trajectory != two.trajectory


def test_a_malformed_traceparent_and_step_are_ignored():
    headers = {"traceparent": "00-" + "0" * 32 + "-" + "1" * 16 + "-01", "x-heddle-step": "-1"}
    whose = resolve(Request(headers, "/generate", {}))
    assert (whose.trace, whose.step) == (None, None)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text() | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
keys = st.text(max_size=6) | st.sampled_from(["input_ids", "rid", "text"])
ids = st.lists(st.integers(0, 200_000), max_size=40)
injections = st.dictionaries(st.sampled_from(["rid", "priority", "new"]), st.integers(0, 9))


@given(st.dictionaries(keys, values, max_size=5), ids, injections, st.booleans(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_spliced_body_parses_equal_to_the_original_plus_what_was_injected(
    fields, tokens, injected, first, loose
):
    body = {"input_ids": tokens, **fields} if first else {**fields, "input_ids": tokens}
    raw = json.dumps(body, ensure_ascii=False, indent=1 if loose else None).encode()
    assert orjson.loads(split(raw).dump(injected)) == {**orjson.loads(raw), **injected}


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":{"input_ids":[1,2]},"x":1}',
        b'{"text":"input_ids","y":[1]}',
        b'{"input_ids":[[1,2],[3]]}',
        b'{"input_ids":[],"a":{"input_ids":[4]}}',
        b'{"input\\u005fids":[1,2],"z":null}',
        b'{"a":{"input_ids":[]},"input_ids":[7]}',
    ],
)
def test_what_only_looks_like_the_array_is_left_alone(raw):
    assert orjson.loads(split(raw).dump({"rid": "r"})) == {**orjson.loads(raw), "rid": "r"}


@pytest.mark.parametrize("inside", [b'1,"]', b'1,"rid":"a"', b"1,[2]", b"1,{}", b"1}", b'"x"'])
def test_an_array_that_holds_text_or_another_is_not_cut_out(inside):
    raw = b'{"input_ids":[' + inside + b'],"n":1}'
    try:
        known = orjson.loads(raw)
    except orjson.JSONDecodeError:
        with pytest.raises(BadRequest, match="not JSON"):
            split(raw)
    else:
        body = split(raw)
        assert body.ids is None
        assert orjson.loads(body.dump({"rid": "mine"})) == {**known, "rid": "mine"}


@pytest.mark.parametrize("count", [1, 2, 700, 8_192])
def test_long_and_short_prompts_are_counted_alike(count):
    raw = orjson.dumps({"input_ids": list(range(count)), "n": 1})
    assert split(raw).prompt_tokens == count


def test_the_ids_are_passed_as_the_bytes_that_came():
    raw = b'{"input_ids": [1,  2,3 ], "n": 1}'
    body = split(raw)
    assert body.ids == b"1,  2,3 "
    assert body.prompt_tokens == 3
    assert b"[1,  2,3 ]" in body.dump({})


@pytest.mark.parametrize("name", ["\u4efb\u52a1-3", "a\nb", "UTF-8''", "50%"])
def test_a_name_as_the_trainers_library_spells_it_is_the_name(name):
    with Tracer(Emitter("http://127.0.0.1:9", service="t"), "r").trajectory(name, group=name) as it:
        headers = {k.lower(): v for k, v in it.headers().items()}
    it.emitter.close(0)
    said = resolve(Request(headers, "/generate", {}))
    assert (said.trajectory, said.group) == (name, name)
