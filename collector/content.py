"""Which attributes hold what people and models wrote, and what is kept of them?

Messages, prompts, completions, tool arguments and results. Off unless an operator switches capture
on: then as sent, or as a hash that still tells equal from different. Knows names, not meanings: an
attribute that nobody announced as content is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final, Literal

import orjson

Capture = Literal["drop", "hash", "keep"]
CAPTURES: Final[tuple[Capture, ...]] = ("drop", "hash", "keep")

NAMES: Final = frozenset(
    {
        # GenAI, new and old
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.system_instructions",
        "gen_ai.tool.definitions",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
        "gen_ai.tool.message",
        "gen_ai.prompt",
        "gen_ai.completion",
        "gen_ai.request.messages",
        "gen_ai.response.text",
        # OpenInference
        "input.value",
        "output.value",
        "tool.parameters",
        "tool_call.function.arguments",
        # Traceloop, MLflow, verl, rl-insight
        "traceloop.entity.input",
        "traceloop.entity.output",
        "mlflow.spanInputs",
        "mlflow.spanOutputs",
        "input",
        "inputs",
        "output",
        "outputs",
        "prompt",
        "completion",
        "messages",
        "arguments",
        "result",
        # Langfuse
        "langfuse.observation.input",
        "langfuse.observation.output",
        "langfuse.trace.input",
        "langfuse.trace.output",
        # Vercel AI SDK
        "ai.prompt",
        "ai.values",
        "ai.value",
        "ai.response.text",
        "ai.response.object",
        "ai.response.toolCalls",
        "ai.toolCall.args",
        "ai.toolCall.result",
        # Google ADK
        "gcp.vertex.agent.llm_request",
        "gcp.vertex.agent.llm_response",
        "gcp.vertex.agent.tool_call_args",
        "gcp.vertex.agent.tool_response",
    }
)
PREFIXES: Final = (
    "gen_ai.prompt.",
    "gen_ai.completion.",
    "gen_ai.content.",
    "llm.input_messages",
    "llm.output_messages",
    "llm.prompts",
    "llm.completions",
    "llm.prompt_template.",
    "llm.tools",
    "llm.function_call",
    "retrieval.documents",
    "reranker.",
    "embedding.embeddings",
    "message.",
    "ai.prompt.",
    "ai.result.",
    "ai.embedding",
)
# GenAI's events carry a message as `content`; an exception event carries none of these.
EVENT_NAMES: Final = frozenset({"content", "message", "tool_calls", "body"})
_REMEMBERED: Final = 20_000
# Of at most a few dozen names each; a sender of random names costs 20 MB at worst.
_SETS_REMEMBERED: Final = 2_000
_LONGEST_SET: Final = 64


class Content:
    """Decides by name, remembers its decisions, counts what it left out."""

    def __init__(self, capture: Capture = "drop") -> None:
        self.capture: Capture = capture
        self.left_out = 0
        self._known: dict[str, bool] = {}
        self._clean: set[tuple[str, ...]] = set()

    def strip(self, attributes: dict[str, Any]) -> dict[str, Any]:
        """The attributes without their content; the same dictionary when there is none."""
        if self.capture == "keep":
            return attributes
        # A sender's spans have few sets of names: one lookup a span, not one an attribute.
        names = tuple(attributes)
        if names in self._clean:
            return attributes
        if any(map(self._is_content, names)):
            return self._without(attributes)
        if len(names) <= _LONGEST_SET:
            if len(self._clean) >= _SETS_REMEMBERED:
                self._clean.clear()
            self._clean.add(names)
        return attributes

    def strip_event(self, attributes: dict[str, Any]) -> dict[str, Any]:
        """The same for a span event, where bare names are content too."""
        if self.capture == "keep":
            return attributes
        plain = self.strip(attributes)
        hit = [name for name in plain if name in EVENT_NAMES]
        return self._replace(plain, hit) if hit else plain

    def _without(self, attributes: dict[str, Any]) -> dict[str, Any]:
        # A number under such a name is a measurement: nobody writes one.
        hit = [
            name
            for name, value in attributes.items()
            if not isinstance(value, int | float) and self._is_content(name)
        ]
        return self._replace(attributes, hit) if hit else attributes

    def _replace(self, attributes: Mapping[str, Any], hit: list[str]) -> dict[str, Any]:
        self.left_out += len(hit)
        kept = {name: value for name, value in attributes.items() if name not in set(hit)}
        if self.capture == "hash":
            kept |= {name: hashed(attributes[name]) for name in hit}
        return kept

    def _is_content(self, name: str) -> bool:
        found = self._known.get(name)
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            found = self._known[name] = is_content(name)
        return found


def is_content(name: str) -> bool:
    """Whether an attribute of that name holds what people or models wrote."""
    return name in NAMES or name.startswith(PREFIXES)


def hashed(value: Any) -> str:
    """64 bits of the value's hash and its size: equal content stays equal."""
    text = value.encode() if isinstance(value, str) else orjson.dumps(value, default=str)
    return f"blake2b:{blake2b(text, digest_size=8).hexdigest()} {len(text)} bytes"
