"""What do the events of a stream say, while its bytes pass through untouched?

Events end at an empty line. The one event a client did not ask for (the usage chunk requested on
its behalf) is taken out; nothing else is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

_END: Final = b"\n\n"
_DATA: Final = b"data:"


class Watch:
    """Remembers the last JSON event; `swallow_usage` holds back events without choices.

    `whole` passes whole events only, so that a stream that breaks can be gone on with.

    `withhold` says whether an end by abort is not for the client, who gets the rest from elsewhere.

    `began` once an event carried output: SGLang's first chat chunk only says the role. `hear` gets
    every event's JSON.
    """

    def __init__(
        self,
        *,
        swallow_usage: bool = False,
        whole: bool = False,
        rewrite: Callable[[bytes], bytes] | None = None,
        withhold: Callable[[], bool] | None = None,
        hear: Callable[[Any], None] | None = None,
    ) -> None:
        self._withhold = withhold if whole else None
        self._swallow = swallow_usage
        self._rewrite = rewrite
        self._hear = hear
        self._holds = swallow_usage or whole or rewrite is not None
        self._rest = b""
        self._last = b""
        self.usage: Any = None
        self.began = False
        self.stopped = False
        """The engine ended it because Heddle told it to: that event and the rest stay here."""
        self.done = False
        """Whether the event that ends a chat stream has come by."""

    def feed(self, chunk: bytes) -> bytes:
        """Bytes to pass on now."""
        *events, self._rest = (self._rest + chunk).split(_END)
        kept: list[bytes] = []
        for event in events:
            if self._swallow and self._is_usage(event):
                continue
            if self._hear is not None or not self.began:
                self._look(_json(event))
            told = self._rewrite(event) if self._rewrite else event
            self.stopped = self.stopped or self._is_stop(event)
            if not self.stopped:
                kept.append(told + _END)
            if event.endswith(b"[DONE]"):
                self.done = True
            elif event.startswith(_DATA):
                self._last = told
        return b"".join(kept) if self._holds else chunk

    def flush(self) -> bytes:
        """What is left when the stream ends without an empty line."""
        rest, self._rest = self._rest, b""
        return rest if self._holds and not self.stopped else b""

    def last(self) -> Any:
        """The last event's JSON; None when there was none."""
        return _json(self._last)

    def _is_stop(self, event: bytes) -> bool:
        if self._withhold is None or b'"abort"' not in event or not self._withhold():
            return False
        said = _json(event)
        meta: Any = said.get("meta_info") if isinstance(said, dict) else None
        reason: Any = meta.get("finish_reason") if isinstance(meta, dict) else None
        return isinstance(reason, dict) and reason.get("type") == "abort"

    def _look(self, said: Any) -> None:
        self.began = self.began or _has_output(said)
        if self._hear is not None:
            self._hear(said)

    def _is_usage(self, event: bytes) -> bool:
        if b'"usage"' not in event:
            return False
        found = _json(event)
        if not isinstance(found, dict) or not found.get("usage"):
            return False
        self.usage = found["usage"]
        return found.get("choices") == []


def _has_output(said: Any) -> bool:
    if not isinstance(said, dict):
        return False
    if said.get("output_ids") or said.get("text"):
        return True
    choice: Any = next(iter(said.get("choices") or ()), None)
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta") or {}
    told = (delta.get(key) for key in ("content", "reasoning_content", "tool_calls"))
    return bool(choice.get("text")) or any(told)


def _json(event: bytes) -> Any:
    try:
        return orjson.loads(event[len(_DATA) :])
    except orjson.JSONDecodeError:
        return None
