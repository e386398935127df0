"""What does one request ask, what is put into it, and what is taken out of its answer again?

The engine gets the request as it came, with rid, session and priority; the client gets the answer
as it came, without what was asked for on its behalf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import orjson

from heddle.controller.dataplane.asgi import Send
from heddle.controller.dataplane.resume import Received
from heddle.controller.dataplane.spans import step_traceparent
from heddle.controller.dataplane.splice import Body
from heddle.controller.dataplane.usage import Usage, of_generate, of_openai
from heddle.controller.live import Grant, Step

GENERATE: Final = "/generate"
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
_KEPT_BACK: Final = frozenset(
    {
        "host", "content-length", "connection", "keep-alive", "transfer-encoding", "upgrade", "te",
        "trailer", "proxy-authorization", "proxy-connection", "accept-encoding", "traceparent",
        "expect", "origin", "referer", "cookie",
    }
)  # fmt: skip


@dataclass(slots=True)
class Exchange:
    """One request: what came in, and whether any of the answer has gone out."""

    path: str
    headers: dict[str, str]
    body: Body
    send: Send
    began: bool = False
    """Whether the head of the answer is out."""
    ended: bool = False
    """Whether its last byte is: a server then reports the client as gone."""
    received: Received | None = None
    """What an engine made of it before it was lost; the next one goes on from there."""
    answered: dict[str, Any] | None = None
    """The message that a whole chat answer holds."""
    is_batch: bool = field(init=False)
    """Several requests in one body: a single rid would be wrong."""

    def __post_init__(self) -> None:
        head = self.body.head
        sampling = head.get("sampling_params")
        many = isinstance(sampling, dict) and (sampling.get("n") or 1) != 1
        nested = isinstance(head.get("text"), list) or isinstance(head.get("input_ids"), list)
        self.is_batch = nested or many or isinstance(sampling, list)

    @property
    def streams(self) -> bool:
        """Whether the client asked for a stream."""
        return self.body.head.get("stream") is True

    @property
    def swallows_usage(self) -> bool:
        """Whether the usage chunk is asked for on the client's behalf."""
        options = self.body.head.get("stream_options")
        asked = isinstance(options, Mapping) and options.get("include_usage")
        return self.streams and self.path != GENERATE and not asked

    @property
    def strips_meta(self) -> bool:
        """Whether meta_info is asked for on the client's behalf."""
        wanted = self.body.head.get("return_meta_info")
        return self.path == CHAT and not self.streams and not wanted

    @property
    def messages(self) -> Any:
        """A chat's messages."""
        return self.body.head.get("messages") if self.path == CHAT else None

    @property
    def can_resume(self) -> bool:
        """Whether another engine can go on where one stopped: token ids in, one request."""
        return self.path == GENERATE and self.body.ids is not None and not self.is_batch

    def carried(self) -> bytes | None:
        """The chat with its answer, as another engine is warmed with; None where it was a batch."""
        messages = self.messages
        if not isinstance(messages, list) or (self.body.head.get("n") or 1) != 1:
            return None
        kept = {k: v for k, v in self.body.head.items() if k in _CONTEXT}
        # A streamed answer is put together for agents that name nobody alone: of another's the part
        # is prefilled by the next step.
        kept["messages"] = [*messages, self.answered] if self.answered else messages
        return orjson.dumps(kept)

    def interrupted(self, content: bytes) -> bool:
        """Keep what an engine made before it was stopped; False where nobody can go on."""
        if not self.can_resume:
            return False
        known = self.received or Received()
        if known.take(orjson.loads(content)):
            self.received = known
            return True
        return False

    def for_engine(self, step: Step, grant: Grant) -> tuple[bytes, dict[str, str]]:
        """The body and the headers it is sent."""
        injected, ids = self._injected(step, grant), self.body.ids
        if self.received is not None and ids is not None:
            ids = self.received.after(ids)
            injected["sampling_params"] = self.received.left(self.body.head.get("sampling_params"))
        passing, values_of = _passing(tuple(self.headers))
        headers = dict(zip(passing, values_of(self.headers), strict=True))
        headers["content-type"] = "application/json"
        headers["traceparent"] = step_traceparent(step)
        # What was said to us alone.
        head = self.body.head
        if "heddle" in head:
            head = {k: v for k, v in head.items() if k != "heddle"}
        return Body(head, ids).dump(injected), headers

    def read(self, content: bytes) -> tuple[Usage, bytes]:
        """Usage of a whole answer, and the answer without what was asked on its behalf."""
        try:
            answer: Any = orjson.loads(content)
        except orjson.JSONDecodeError:
            return Usage(), content
        if self.path == GENERATE:
            if self.received is not None and isinstance(answer, dict):
                self.received.put_before(answer)
                content = orjson.dumps(answer)
            return of_generate(answer), content
        usage = of_openai(answer)
        self.answered = _message(answer)
        if not self.strips_meta or not isinstance(answer, dict):
            return usage, content
        stripped = [c.pop("meta_info", None) for c in answer.get("choices") or []]
        return usage, orjson.dumps(answer) if any(stripped) else content

    def _injected(self, step: Step, grant: Grant) -> dict[str, Any]:
        keys: dict[str, Any] = {}
        head = self.body.head
        if not self.is_batch:
            keys["rid"] = grant.rid
            if "session_id" not in head and self.path != COMPLETIONS:
                keys["session_id"] = step.trajectory.id
        if step.asked_priority is None and step.priority is not None:
            keys["priority"] = step.priority
        if self.strips_meta:
            keys["return_meta_info"] = True
        if self.swallows_usage:
            options = head.get("stream_options")
            known = options if isinstance(options, Mapping) else {}
            keys["stream_options"] = {**known, "include_usage": True}
        return keys


def said_of(step: Step, grant: Grant) -> list[tuple[bytes, bytes]]:
    """The headers that tell the client what was decided."""
    said = [
        (b"x-heddle-worker", _safe(grant.worker.id)),
        (b"x-heddle-trajectory-id", _safe(step.trajectory.id)),
        (b"x-heddle-step", b"%d" % step.index),
        (b"x-heddle-decision", _safe(grant.decision)),
        (b"x-heddle-queue-ms", b"%.3f" % (step.held_s * 1e3)),
        (b"traceparent", step_traceparent(step).encode()),
    ]
    if step.whose.source in ("lineage", "ambiguous"):
        said.append((b"x-heddle-identity", step.whose.source.encode()))
    return said


_CONTEXT: Final = frozenset(
    {"model", "tools", "chat_template_kwargs", "reasoning_effort", "lora_path", "cache_salt",
     "extra_key"}
)  # fmt: skip
"""What decides how messages become tokens, and whose cache they are in."""


def _message(answer: Any) -> dict[str, Any] | None:
    choices: Any = answer.get("choices") if isinstance(answer, dict) else None
    first: Any = choices[0] if isinstance(choices, list) and choices else None
    message: Any = first.get("message") if isinstance(first, dict) else None
    return message if isinstance(message, dict) else None


# The same dozen names come with every request.
@lru_cache(maxsize=1024)
def _passing(names: tuple[str, ...]) -> tuple[list[str], Callable[[Mapping[str, str]], list[str]]]:
    """Those that go on to the engine, and what takes their values."""
    found = [n for n in names if n not in _KEPT_BACK and not n.startswith("x-heddle-")]
    return found, (lambda headers: [*map(headers.__getitem__, found)])


_PRINTED: Final = bytes(b" "[0] if b < 0x20 or b == 0x7F else b for b in range(256))
"""Control characters as spaces."""


# Workers and decisions are few, and a trajectory comes back.
@lru_cache(maxsize=16_384)
def _safe(value: str) -> bytes:
    # A trajectory id comes from the client: no line break of it may reach a header.
    return value.encode("utf-8", "replace").translate(_PRINTED)
