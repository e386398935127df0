"""What does an HTTP body ask of the engine?

SGLang's /generate and the two OpenAI bodies to a `Request`. Text is tokenised by bytes: one token a
byte, so that growing chats share their prefix; a real tokenizer makes about a quarter as many.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from uuid import uuid4

import numpy as np
import orjson

from heddle.controller.emulator.cache import Ids
from heddle.controller.emulator.errors import BadRequest
from heddle.controller.emulator.request import NO_IDS, Request

Body = dict[str, Any]
# Without a limit a chat may go on to the context's end; looking further than this is never needed,
# as one in e^68 outputs is longer.
FREE_TOKENS = 16_384


def body_of(raw: bytes) -> Body:
    """The JSON object of a request."""
    try:
        parsed = orjson.loads(raw or b"{}")
    except orjson.JSONDecodeError as error:
        sentence = f"the body is not JSON: {error}"
        raise BadRequest(sentence) from None
    if not isinstance(parsed, dict):
        sentence = "the body must be a JSON object"
        raise BadRequest(sentence)
    return cast("Body", parsed)


def tokens_of(text: str) -> Ids:
    """One token a byte."""
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)


def text_of(ids: Ids) -> str:
    """Back to text; only for ids that the byte tokenizer makes."""
    return ids.astype(np.uint8).tobytes().decode("ascii", "replace")


def generate_request(body: Body) -> Request:
    """POST /generate: exactly one of input_ids and text, one prompt."""
    text, raw = body.get("text"), body.get("input_ids")
    if (text is None) == (raw is None):
        sentence = "Either text, input_ids or input_embeds should be provided, not several."
        raise BadRequest(sentence)
    if isinstance(text, list) or (isinstance(raw, list) and raw and isinstance(raw[0], list)):
        sentence = "the emulated engine takes one prompt a request, not a batch"
        raise BadRequest(sentence)
    sampling = body.get("sampling_params") or {}
    if not isinstance(sampling, dict):
        sentence = "sampling_params must be an object"
        raise BadRequest(sentence)
    wanted = cast("Body", sampling)
    limit = _count("max_new_tokens", wanted.get("max_new_tokens"), 128)
    least = _count("min_new_tokens", wanted.get("min_new_tokens"), 0)
    if least > limit:
        sentence = f"min_new_tokens must be in [0, max_new_tokens({limit})], got {least}."
        raise BadRequest(sentence)
    _one_sample(wanted)
    return Request(
        rid=_rid(body),
        ids=tokens_of(_string(text, "text")) if raw is None else _ids(raw),
        max_new_tokens=limit,
        priority=_count("priority", body.get("priority"), 0, least=-(2**63)),
        ignore_eos=bool(wanted.get("ignore_eos", False)) or least >= limit,
        salt=_salt(body, wanted.get("sampling_seed")),
        text=raw is None,
    )


def chat_request(body: Body) -> Request:
    """POST /v1/chat/completions; like SGLang it serves whatever `model` says."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        sentence = "messages must be a non-empty list"
        raise BadRequest(sentence)
    said = cast("list[Any]", messages)
    if not all(isinstance(message, dict) and message.get("role") for message in said):
        sentence = 'each of messages must be an object with a "role"'
        raise BadRequest(sentence)
    ids = body.get("input_ids")
    prompt = tokens_of(template(said)) if ids is None else _ids(ids)
    return _openai(body, prompt, body.get("max_completion_tokens") or body.get("max_tokens"))


def completion_request(body: Body) -> Request:
    """POST /v1/completions: the prompt is text or token ids."""
    prompt = body.get("prompt")
    ids = _ids(prompt) if isinstance(prompt, list) else tokens_of(_string(prompt, "prompt"))
    return _openai(body, ids, 16 if body.get("max_tokens") is None else body["max_tokens"])


def template(messages: list[Any]) -> str:
    """ChatML, ending where the assistant begins."""
    said = [f"<|im_start|>{m['role']}\n{_content(m)}<|im_end|>\n" for m in messages]
    return "".join(said) + "<|im_start|>assistant\n"


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        parts = [p.get("text", "") for p in content if isinstance(p, dict)]
        content = "".join(str(part) for part in parts)
    calls = message.get("tool_calls")
    return f"{content or ''}{orjson.dumps(calls).decode() if calls else ''}"


def _openai(body: Body, ids: Ids, limit: Any) -> Request:
    if not isinstance(body.get("stream_options") or {}, dict):
        sentence = "stream_options must be an object"
        raise BadRequest(sentence)
    _one_sample(body)
    return Request(
        rid=_rid(body),
        ids=ids,
        max_new_tokens=_count("max_new_tokens", limit, FREE_TOKENS),
        priority=_count("priority", body.get("priority"), 0, least=-(2**63)),
        ignore_eos=bool(body.get("ignore_eos", False)),
        salt=_salt(body, body.get("seed")),
        text=True,
    )


def _rid(body: Body) -> str:
    rid = body.get("rid")
    if rid is not None and not isinstance(rid, str):
        sentence = f"rid must be a string, got {rid!r}."
        raise BadRequest(sentence)
    return rid or uuid4().hex


def streams_of(body: Body) -> bool:
    """Whether the answer comes piece by piece."""
    said = body.get("stream")
    if said is not None and not isinstance(said, bool):
        sentence = f"stream must be true or false, got {said!r}."
        raise BadRequest(sentence)
    return bool(said)


def _one_sample(asked: Body) -> None:
    if _count("n", asked.get("n"), 1) != 1:
        sentence = "the emulated engine makes one sample a request; send the request n times"
        raise BadRequest(sentence)


def _salt(body: Body, seed: Any) -> str:
    return f"{seed if seed is not None else ''}/{body.get('session_id') or ''}"


def _string(value: Any, name: str) -> str:
    if not isinstance(value, str):
        sentence = f"{name} must be a string"
        raise BadRequest(sentence)
    return value


def _ids(raw: Any) -> Ids:
    if raw == []:
        return NO_IDS
    try:
        ids = np.array(raw)
    except (ValueError, TypeError, OverflowError):
        ids = np.array(None)
    if ids.dtype.kind == "i" and ids.ndim != 1:
        sentence = "input_ids must be one flat list of token ids"
        raise BadRequest(sentence)
    # Numpy would take words, halves and truths for numbers; an engine takes none of them.
    if ids.dtype.kind != "i" or ids.min() < 0 or ids.max() >= 2**31:
        sentence = "input_ids must be a list of token ids (integers from 0 to 2,147,483,647)"
        raise BadRequest(sentence)
    return ids.astype(np.int32)


def _count(name: str, value: Any, default: int, least: int = 0) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        sentence = f"{name} must be an integer of at least {least} (of 64 bits), got {value!r}."
        raise BadRequest(sentence)
    return value
