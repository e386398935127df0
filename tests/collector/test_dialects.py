"""Other people's spans: what they become, and what they must not become."""

from __future__ import annotations

import json

import pytest

from heddle.collector.columns import Origin, Rows, Span
from heddle.collector.content import Content
from heddle.collector.dialects import SGLANG_SCOPE

A, B, P = "a" * 32, "b" * 16, "c" * 16


def row(name, attributes, *, parent=None, scope=None, resource=None, events=None, capture="drop"):
    content = Content(capture)
    rows = Rows(0, content)
    span = Span(A, B, parent, name, 1, 1, 2, attributes, events=events)
    rows.add(span, Origin(resource or {"service.name": "svc"}, scope))
    return {**rows.table().to_pylist()[0], "left_out": content.left_out}


SGLANG = {
    "rid": "0123456789abcdef-00012-00",
    "module": "sglang::request",
    "gen_ai.usage.prompt_tokens": 900,
    "gen_ai.usage.completion_tokens": 80,
    "gen_ai.usage.cached_tokens": 512,
    "gen_ai.response.finish_reasons": '["stop"]',
    "gen_ai.latency.time_in_queue": 0.25,
}
VERL = {"step": 7, "sample_index": 3, "rollout_n": 2, "validate": False, "name": "generate"}
INSIGHT = {"experiment_name": "e1", "global_steps": "12", "sample": 4, "session": 0, "traj": 1}
LANGFUSE = {
    "langfuse.observation.type": "generation",
    "langfuse.session.id": "s1",
    "langfuse.observation.model.name": "m",
    "langfuse.observation.usage_details": json.dumps(
        {"input": 130213, "output": 1253, "cache_read_input_tokens": 128955, "total": 260421}
    ),
}
OPENINFERENCE = {
    "openinference.span.kind": "LLM",
    "session.id": "s1",
    "llm.model_name": "m",
    "llm.token_count.prompt": 10,
    "llm.token_count.completion": 5,
    "llm.token_count.total": 15,
    "llm.token_count.prompt_details.cache_read": 4,
}
TRACELOOP = {
    "traceloop.span.kind": "tool",
    "traceloop.entity.name": "search",
    "traceloop.association.properties.session_id": "s1",
}
GENAI = {
    "gen_ai.operation.name": "chat",
    "gen_ai.conversation.id": "c1",
    "gen_ai.request.model": "m",
    "gen_ai.usage.input_tokens": 100,
    "gen_ai.usage.cache_read.input_tokens": 60,
    "gen_ai.usage.cache_write.input_tokens": 10,
    "gen_ai.usage.reasoning.output_tokens": 3,
    "gen_ai.response.finish_reasons": ["stop"],
}
VERCEL = {"ai.operationId": "ai.streamText.doStream", "ai.model.id": "m", "ai.usage.inputTokens": 9}


@pytest.mark.parametrize(
    ("name", "attributes", "expected"),
    [
        ("chat m", GENAI, {"op": "chat", "trajectory_id": "c1", "input_tokens": 100}),
        ("chat m", GENAI, {"cached_tokens": 60, "cache_write_tokens": 10, "reasoning_tokens": 3}),
        ("x", OPENINFERENCE, {"op": "chat", "trajectory_id": "s1", "model": "m"}),
        ("x", OPENINFERENCE, {"input_tokens": 10, "output_tokens": 5, "cached_tokens": 4}),
        ("search.tool", TRACELOOP, {"op": "execute_tool", "trajectory_id": "s1"}),
        ("g", LANGFUSE, {"op": "chat", "trajectory_id": "s1", "model": "m"}),
        ("ai.streamText.doStream", VERCEL, {"op": "chat", "model": "m", "input_tokens": 9}),
        (
            "ai.toolCall",
            {"ai.operationId": "ai.toolCall", "ai.toolCall.name": "bash"},
            {"op": "execute_tool", "tool_name": "bash"},
        ),
        ("g", VERL, {"rollout_id": "7", "group_id": "3", "sample_index": 2}),
        ("g", VERL, {"trajectory_id": "7-3-2"}),
        (
            "gateway_generation",
            {**INSIGHT, "turn": 5},
            {"op": "chat", "run_id": "e1", "rollout_id": "12", "step_index": 5},
        ),
        (
            "agent_session",
            {**INSIGHT, "uid": "u9"},
            {
                "op": "invoke_agent",
                "group_id": "u9",
                "trajectory_id": "sample=4/session=0/traj=1",
            },
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_dialect_becomes_ours_and_stays_readable_as_sent(name, attributes, expected):
    found = row(name, attributes)
    assert {key: found[key] for key in expected} == expected
    assert json.loads(found["attrs"]) == attributes


def test_an_sglang_request_by_itself_is_a_step_of_the_trajectory_in_its_rid():
    found = row(" Req 01234567", SGLANG, scope=SGLANG_SCOPE, events=[{"name": "retract"}])
    assert (found["op"], found["trajectory_id"], found["step_index"]) == (
        "chat",
        "0123456789abcdef",
        12,
    )
    assert (found["input_tokens"], found["cached_tokens"], found["finish_reason"]) == (
        900,
        512,
        "stop",
    )
    assert (found["queue_ns"], found["retractions"]) == (250_000_000, 1)


def test_an_sglang_request_below_a_step_adds_nothing_to_that_step():
    found = row(" Req 01234567", SGLANG, scope=SGLANG_SCOPE, parent=P)
    assert (found["op"], found["trajectory_id"]) == ("engine.request", None)
    assert (found["input_tokens"], found["output_tokens"]) == (None, None)


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("prefill_waiting", "engine.queue"),
        ("prefill_forward", "engine.prefill"),
        ("decode_forward", "engine.decode"),
        ("tokenize", "engine.tokenize"),
        ("scheduler [TP 0] (host:1 | pid:2)", "engine.thread"),
    ],
)
def test_sglang_slices_are_named_by_what_the_engine_did(name, op):
    attributes = {"thread_label": "scheduler"} if "[TP" in name else {}
    assert row(name, attributes, scope=SGLANG_SCOPE, parent=P)["op"] == op


def test_cached_tokens_are_never_added_to_a_prompt_that_includes_them():
    found = row("g", LANGFUSE)
    counted = (found["input_tokens"], found["cached_tokens"], found["output_tokens"])
    assert counted == (130213, 128955, 1253)


def test_a_prompt_counted_without_its_cached_part_is_made_whole():
    sent = {
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.cache_read_input_tokens": 1_000,
        "gen_ai.usage.cache_creation_input_tokens": 200,
    }
    assert row("chat", sent)["input_tokens"] == 1_205


@pytest.mark.parametrize(
    "sent",
    [
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.usage.input_tokens": 300},
        {"ai.operationId": "ai.generateText", "ai.usage.promptTokens": 300},
        {"openinference.span.kind": "CHAIN", "llm.token_count.prompt": 300},
        {"gen_ai.operation.name": "chat", "gen_ai.aggregated_usage.input_tokens": 300},
        {"gen_ai.operation.name": "chat", "gen_ai.usage.details.input_tokens": 300},
        {"gen_ai.operation.name": "chat", "llm.usage.total_tokens": 300},
    ],
    ids=str,
)
def test_usage_that_sums_over_children_or_parts_counts_nowhere(sent):
    assert row("x", sent)["input_tokens"] is None


CONTENT = {
    "gen_ai.input.messages": "[]",
    "gen_ai.prompt.0.content": "hi",
    "llm.input_messages.0.message.content": "hi",
    "input.value": "hi",
    "traceloop.entity.input": "hi",
    "langfuse.observation.output": "hi",
    "ai.toolCall.args": "{}",
    "gen_ai.tool.call.result": [{"a": 1}],
    "gcp.vertex.agent.llm_request": "{}",
    "output": "hi",
}


def test_content_is_left_out_and_counted_unless_capture_is_on():
    kept = {"gen_ai.request.model": "m", "output.mime_type": "text", "output_tokens": 5}
    found = row("x", {**CONTENT, **kept})
    assert (json.loads(found["attrs"]), found["left_out"]) == (kept, len(CONTENT))
    assert json.loads(row("x", CONTENT, capture="keep")["attrs"]) == CONTENT


def test_hashed_content_tells_equal_from_different():
    first = json.loads(
        row("x", {"input": "a", "output": "a", "prompt": "b"}, capture="hash")["attrs"]
    )
    assert first["input"] == first["output"] != first["prompt"]
    assert first["input"].startswith("blake2b:")


def test_a_number_under_a_content_name_is_a_measurement():
    assert json.loads(row("x", {"output": 12})["attrs"]) == {"output": 12}


def test_content_in_events_is_left_out_and_exceptions_stay():
    events = [
        {"name": "gen_ai.user.message", "time_ns": 1, "attributes": {"content": "hi", "role": "u"}},
        {"name": "exception", "time_ns": 2, "attributes": {"exception.type": "KeyError"}},
    ]
    found = row("x", {}, events=events)
    assert [e["attributes"] for e in json.loads(found["events"])] == [
        {"role": "u"},
        {"exception.type": "KeyError"},
    ]
    assert found["left_out"] == 1
