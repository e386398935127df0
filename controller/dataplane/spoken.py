"""What did the model say, as the message that its client sends back with the next step?

From the deltas of a stream. Clients change messages on the way (null
for an empty text, white space, reasoning left out, arguments dumped anew): `plain` is what all of
those have in common, so that an answer is known again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

_THOUGHT: Final = re.compile(r"<think>.*?(?:</think>|\Z)|\A[^<]*</think>", re.DOTALL)


class Spoken:
    """The first choice's message, put together from the events of a stream."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}

    def hear(self, event: Any) -> None:
        """One event; whatever is no chat chunk says nothing."""
        for choice in _choices(event):
            if choice.get("index", 0) != 0:
                continue
            delta: Any = choice.get("delta") or {}
            self._text.append(_text(delta.get("content")))
            for call in delta.get("tool_calls") or ():
                self._call(call)

    def message(self) -> dict[str, Any]:
        """As a whole answer would have it."""
        calls = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for _, call in sorted(self._calls.items())
        ]
        said: dict[str, Any] = {"role": "assistant", "content": "".join(self._text)}
        return {**said, "tool_calls": calls} if calls else said

    def _call(self, call: Mapping[str, Any]) -> None:
        empty = {"id": "", "name": "", "arguments": ""}
        known = self._calls.setdefault(int(call.get("index") or 0), empty)
        function: Any = call.get("function") or {}
        known["id"] = known["id"] or str(call.get("id") or "")
        known["name"] = known["name"] or str(function.get("name") or "")
        known["arguments"] += str(function.get("arguments") or "")


def plain(message: Any) -> bytes:
    """What survives a client's own template of this message; tool call ids are left out."""
    if not isinstance(message, Mapping):
        return orjson.dumps(message, default=str)
    calls = [(name, arguments) for _, name, arguments in _calls(message)]
    said = _THOUGHT.sub("", _text(message.get("content"))).strip()
    return orjson.dumps([message.get("role"), said, calls], default=str)


def call_ids(message: Any) -> frozenset[str]:
    """The tool calls it makes or answers: the engine gave each an id of its own."""
    if not isinstance(message, Mapping):
        return frozenset()
    made = {call for call, _, _ in _calls(message)}
    return frozenset(made | {str(message.get("tool_call_id") or "")}) - {""}


def _calls(message: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    calls: Any = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function: Any = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            name, arguments = str(function.get("name")), function.get("arguments")
            yield str(call.get("id") or ""), name, _canonical(arguments)


def _canonical(arguments: Any) -> str:
    try:
        found: Any = orjson.loads(arguments) if isinstance(arguments, str | bytes) else arguments
        return orjson.dumps(found, option=orjson.OPT_SORT_KEYS, default=str).decode()
    except orjson.JSONDecodeError:
        return str(arguments).strip()


def _choices(event: Any) -> list[Any]:
    found: Any = event.get("choices") if isinstance(event, Mapping) else None
    return [c for c in found if isinstance(c, Mapping)] if isinstance(found, list) else []


def _text(content: Any) -> str:
    if isinstance(content, list):
        parts: list[Any] = content
        return "".join(str(p.get("text") or "") for p in parts if isinstance(p, Mapping))
    return content if isinstance(content, str) else ""
