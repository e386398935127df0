"""What does an engine's answer say of tokens and time?

From SGLang's `meta_info` (whose times need --enable-metrics) or OpenAI's `usage`. Times that are
missing or impossible fall back to what the controller saw itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(slots=True, kw_only=True)
class Usage:
    """One step's tokens and engine seconds; None where nobody knows."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    retractions: int | None = None
    finish_reason: str | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    finished_s: float | None = None
    """When its last token was there, UTC by the engine's own clock."""
    output_ids: bytes | None = None
    policy_version: str | None = None
    first_chunk_ns: int | None = None
    """Fleet time at which a stream's first output came by here."""
    error: str | None = None
    """What an engine's refusal is called on the span."""

    @property
    def is_timed(self) -> bool:
        """Whether anybody knows how long prefill or decode took."""
        return self.prefill_s is not None or self.decode_s is not None

    def watched(self, sent_ns: int, first_ns: int | None, last_ns: int) -> None:
        """What a stream showed from here: its first output ends queue and prefill in one.

        The engine's own times win; SGLang puts none into a chat stream.
        """
        self.first_chunk_ns = first_ns
        if self.prefill_s is None and first_ns is not None:
            self.prefill_s = max((first_ns - sent_ns) / 1e9 - (self.queue_s or 0.0), 0.0)
            self.decode_s = (last_ns - first_ns) / 1e9

    def fitted(self, inside_s: float) -> tuple[float, float, float]:
        """Queue, prefill and decode, cut in that order so that they fit the engine's part."""
        left = max(inside_s, 0.0)
        queue_s = min(max(self.queue_s or 0.0, 0.0), left)
        left -= queue_s
        prefill_s = min(max(self.prefill_s or 0.0, 0.0), left)
        return queue_s, prefill_s, min(max(self.decode_s or 0.0, 0.0), left - prefill_s)


def of_generate(answer: Any) -> Usage:
    """From the answer of /generate; a batch is summed."""
    if isinstance(answer, list):
        return _summed([of_generate(one) for one in answer])
    if not isinstance(answer, dict):
        return Usage()
    usage = of_meta(answer.get("meta_info"))
    ids = answer.get("output_ids")
    if isinstance(ids, list) and len(ids) == usage.output_tokens:
        usage.output_ids = orjson.dumps(ids)[1:-1]
    return usage


def of_meta(meta: Any) -> Usage:
    """From `meta_info`."""
    if not isinstance(meta, dict):
        return Usage()
    reason = meta.get("finish_reason")
    usage = Usage(
        input_tokens=_int(meta.get("prompt_tokens")),
        output_tokens=_int(meta.get("completion_tokens")),
        cached_tokens=_told(meta.get("cached_tokens")),
        retractions=_told(meta.get("num_retractions")),
        finish_reason=_reason(reason),
        policy_version=str(meta["weight_version"]) if meta.get("weight_version") else None,
    )
    _take_times(usage, meta)
    return usage


def of_openai(answer: Any) -> Usage:
    """From a chat or text completion, with `choices[].meta_info` where the engine sent it."""
    if not isinstance(answer, Mapping):
        return Usage()
    choices = answer.get("choices") or [{}]
    usage = of_meta(choices[0].get("meta_info"))
    counts = answer.get("usage") or {}
    usage.input_tokens = usage.input_tokens or _int(counts.get("prompt_tokens"))
    usage.output_tokens = usage.output_tokens or _int(counts.get("completion_tokens"))
    details = counts.get("prompt_tokens_details") or {}
    if usage.cached_tokens is None and "cached_tokens" in details:
        usage.cached_tokens = _int(details["cached_tokens"])
    usage.finish_reason = usage.finish_reason or _reason(choices[0].get("finish_reason"))
    return usage


def _take_times(usage: Usage, meta: Mapping[str, Any]) -> None:
    e2e = _float(meta.get("e2e_latency"))
    entry, prefilled = (
        _float(meta.get("forward_entry_time")),
        _float(meta.get("prefill_finished_time")),
    )
    finished = _float(meta.get("request_finished_ts"))
    usage.queue_s, usage.finished_s = _float(meta.get("queue_time")), finished
    if entry is not None and prefilled is not None:
        usage.prefill_s = max(prefilled - entry, 0.0)
    if prefilled is not None and finished is not None:
        usage.decode_s = finished - prefilled
    # Two clocks in one answer give an absurd difference; the whole is then the better witness.
    wrong = usage.decode_s is None or usage.decode_s < 0 or usage.decode_s > (e2e or 0.0) * 1.05
    if e2e is not None and wrong:
        usage.decode_s = max(e2e - (usage.queue_s or 0.0) - (usage.prefill_s or 0.0), 0.0)


def _summed(parts: list[Usage]) -> Usage:
    return Usage(
        input_tokens=sum(p.input_tokens for p in parts),
        output_tokens=sum(p.output_tokens for p in parts),
        cached_tokens=_sum(p.cached_tokens for p in parts),
        retractions=_sum(p.retractions for p in parts),
        finish_reason=parts[-1].finish_reason if parts else None,
        queue_s=_longest(p.queue_s for p in parts),
        prefill_s=_longest(p.prefill_s for p in parts),
        decode_s=_longest(p.decode_s for p in parts),
        finished_s=_longest(p.finished_s for p in parts),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    """Of those told; None where none was."""
    told = [count for count in counts if count is not None]
    return sum(told) if told else None


def _longest(seconds: Iterable[float | None]) -> float | None:
    return max((one for one in seconds if one is not None), default=None)


def _reason(value: Any) -> str | None:
    if isinstance(value, dict):
        return str(value.get("type")) if value.get("type") else None
    return str(value) if value else None


def _int(value: Any) -> int:
    if type(value) is int:
        return value
    return int(value) if isinstance(value, int | float) else 0


def _told(value: Any) -> int | None:
    return None if value is None else _int(value)


def _float(value: Any) -> float | None:
    if type(value) is float:
        return value
    return float(value) if isinstance(value, int | float) else None
