"""What does a span of another dialect mean in ours, where a table of names cannot say it?

`settle` mends the typed columns of one span after its attributes were read by name: SGLang's span
names, ids that trainers spread over several attributes, usage inside JSON, and token counts that
belong to a span's children. The attributes as sent are not touched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from heddle.collector import conventions as c

OPERATIONS: Final = {
    "llm": c.CHAT,
    "generation": c.CHAT,
    "completion": c.CHAT,
    "tool": c.EXECUTE_TOOL,
    "agent": c.INVOKE_AGENT,
    "embedding": c.EMBEDDINGS,
    "ai.generatetext": c.INVOKE_AGENT,
    "ai.streamtext": c.INVOKE_AGENT,
    "ai.generateobject": c.INVOKE_AGENT,
    "ai.streamobject": c.INVOKE_AGENT,
    "ai.generatetext.dogenerate": c.CHAT,
    "ai.streamtext.dostream": c.CHAT,
    "ai.generateobject.dogenerate": c.CHAT,
    "ai.streamobject.dostream": c.CHAT,
    "ai.toolcall": c.EXECUTE_TOOL,
    "ai.embed.doembed": c.EMBEDDINGS,
    "ai.embedmany.doembed": c.EMBEDDINGS,
}
"""What other dialects call an operation, in lower case; every other value is kept as sent."""

Hot = dict[str, Any]
Attributes = Mapping[str, Any]

ENGINE_REQUEST: Final = "engine.request"
"""An engine's own span of a request that some step above it made."""
ENGINE_OPS: Final = {
    "prefill_waiting": "engine.queue",
    "prefill_forward": "engine.prefill",
    "chunked_prefill": "engine.prefill",
    "decode_waiting": "engine.queue",
    "decode_forward": "engine.decode",
}
"""SGLang's slices; every other one is `engine.` and its own name."""
FLOODS: Final = frozenset({"decode_loop", "run_batch_cpu"})
"""SGLang sends these once per request and forward pass, at trace level 3 and 4."""
SGLANG_SCOPE: Final = "sglang server"

_REQUEST: Final = re.compile("(?:prefill|decode|) ?Req ")
_LINEAGE: Final = re.compile(r"(.+)-(\d+)-(\d+)")
_AGENT_LOOP: Final = {
    "agent_session": c.INVOKE_AGENT,
    "agent_task": "agent_task",
    "gateway_generation": c.CHAT,
}
_USAGE_DETAILS: Final = {
    "input": "input_tokens",
    "prompt_tokens": "input_tokens",
    "input_tokens": "input_tokens",
    "output": "output_tokens",
    "completion_tokens": "output_tokens",
    "output_tokens": "output_tokens",
    "input_cached_tokens": "cached_tokens",
    "cache_read_input_tokens": "cached_tokens",
    "input_cache_read": "cached_tokens",
    "cache_creation_input_tokens": "cache_write_tokens",
    "input_cache_creation": "cache_write_tokens",
    "output_reasoning_tokens": "reasoning_tokens",
}
"""Of usage details only these count: the others are parts or sums of them."""


def settle(hot: Hot, span: Any, scope: str | None) -> None:
    """Mend *hot*, the typed values of one span by column."""
    attributes: Attributes = span.attributes
    if scope == SGLANG_SCOPE or "rid" in attributes:
        _sglang(hot, span, attributes)
    for sign, read in _BY_ATTRIBUTE:
        if sign in attributes:
            read(hot, span.name, attributes)
    op = hot.get("op")
    if op is None and span.name in _OURS:
        hot["op"] = op = span.name
    if op is not None and op not in c.USAGE_OPS:
        for column in c.USAGE_COLUMNS:
            hot.pop(column, None)
    elif "cached_tokens" in hot:
        _include_cached(hot)


_OURS: Final = frozenset(c.HEDDLE_SPANS)


def _include_cached(hot: Hot) -> None:
    """More cached than prompt: the sender counts the prompt without its cached part."""
    total, cached = hot.get("input_tokens"), hot["cached_tokens"]
    if total is not None and cached > total:
        hot["input_tokens"] = total + cached + hot.get("cache_write_tokens", 0)


def _sglang(hot: Hot, span: Any, attributes: Attributes) -> None:
    if _REQUEST.match(span.name) and "rid" in attributes:
        _sglang_request(hot, span, str(attributes["rid"]))
    elif "thread_label" in attributes:
        hot.setdefault("op", "engine.thread")
    else:
        hot.setdefault("op", ENGINE_OPS.get(span.name, f"engine.{span.name}"))


def _sglang_request(hot: Hot, span: Any, rid: str) -> None:
    """A request that brought a traceparent is its parent's step; alone it is a step itself."""
    if span.parent_span_id is not None:
        hot.setdefault("op", ENGINE_REQUEST)
        return
    hot.setdefault("op", c.CHAT)
    lineage = _LINEAGE.fullmatch(rid)
    hot.setdefault("trajectory_id", lineage[1] if lineage else rid)
    if lineage:
        hot.setdefault("step_index", int(lineage[2]))
    retracted = sum(event.get("name") == "retract" for event in span.events or ())
    if retracted:
        hot.setdefault("retractions", retracted)


def _verl(hot: Hot, name: str, attributes: Attributes) -> None:
    """verl's rollout trace: step, sample_index and rollout_n together name the trajectory."""
    _ = name
    step, sample = attributes.get("step"), attributes.get("sample_index")
    if step is None or sample is None:
        return
    number = attributes["rollout_n"]
    hot.setdefault("rollout_id", str(step))
    hot.setdefault("group_id", str(sample))
    hot.setdefault("trajectory_id", f"{step}-{sample}-{number}")
    if isinstance(number, int):
        hot.setdefault("sample_index", number)


def _agent_loop(hot: Hot, name: str, attributes: Attributes) -> None:
    """rl-insight's agent loop: experiment > global step > sample > session > trajectory > turn."""
    sample, session = attributes.get("sample"), attributes.get("session")
    _put(hot, "run_id", attributes["experiment_name"])
    _put(hot, "rollout_id", attributes.get("global_steps"))
    _put(hot, "group_id", attributes.get("uid", sample))
    if sample is not None:
        trajectory = f"sample={sample}/session={session}/traj={attributes.get('traj', 0)}"
        hot.setdefault("trajectory_id", trajectory)
    if isinstance(attributes.get("turn"), int):
        hot.setdefault("step_index", attributes["turn"])
    if name in _AGENT_LOOP:
        hot.setdefault("op", _AGENT_LOOP[name])


def _langfuse_usage(hot: Hot, name: str, attributes: Attributes) -> None:
    """Langfuse's own exporter sends usage as JSON; its names win over GenAI's."""
    _ = name
    try:
        details = orjson.loads(attributes["langfuse.observation.usage_details"])
    except (orjson.JSONDecodeError, TypeError):
        return
    if not isinstance(details, dict):
        return
    for key, column in _USAGE_DETAILS.items():
        value = details.get(key)
        if isinstance(value, int) and 0 <= value < 1 << 63:
            hot[column] = value


def _put(hot: Hot, column: str, value: Any) -> None:
    if value not in (None, ""):
        hot.setdefault(column, str(value))


_BY_ATTRIBUTE: Final[tuple[tuple[str, Callable[[Hot, str, Attributes], None]], ...]] = (
    ("rollout_n", _verl),
    ("experiment_name", _agent_loop),
    ("langfuse.observation.usage_details", _langfuse_usage),
)
