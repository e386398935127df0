"""How do the request records of `--export-metrics-to-file` become steps?

One JSON object a line, one step each: rid, session, tokens and the engine's own times. The
trajectory is the session, else the request itself; steps are numbered in the order of the file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import orjson

from heddle.collector import conventions as c
from heddle.collector import ids
from heddle.collector.importers.documents import (
    Document,
    Found,
    ImportRefused,
    Source,
    lines_of,
    parsed,
    span,
)
from heddle.collector.importers.recognise import recognised

DEFAULT_RUN: Final = "sglang-import"
_TAKEN: Final = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "num_retractions": "heddle.retractions",
    "queue_time": "heddle.queue_s",
    "weight_version": "heddle.policy_version",
    "e2e_latency": "sglang.e2e_latency",
    "dp_rank": "sglang.dp_rank",
}


def read(source: Source) -> Iterator[Found]:
    """The lines of one file."""
    run = source.run or DEFAULT_RUN
    steps: dict[str, int] = defaultdict(int)
    for number, line in lines_of(source.path):
        place = f"line {number}"
        record = parsed(source.path, line, number)
        if not isinstance(record, dict) or "request_parameters" not in record:
            raise ImportRefused(source.path, place, recognised(record))
        asked = _parameters(source, place, record)
        rid = str(record.get("id") or asked.get("rid") or "")
        if not rid:
            raise ImportRefused(source.path, place, "names no request: neither id nor rid")
        trajectory = str(asked.get("session_id") or rid)
        made = _step(source, place, record, (run, trajectory, rid, steps[trajectory]))
        steps[trajectory] += 1
        yield Found([made], place, {"service.name": "sglang"}, "sglang-metrics")


def _parameters(source: Source, place: str, record: Document) -> Document:
    asked = record["request_parameters"]
    if isinstance(asked, str):
        try:
            asked = orjson.loads(asked)
        except orjson.JSONDecodeError as error:
            raise ImportRefused(source.path, place, "request_parameters is not JSON") from error
    return asked if isinstance(asked, dict) else {}


def _step(
    source: Source, place: str, record: Document, whose: tuple[str, str, str, int]
) -> Document:
    run, trajectory, rid, index = whose
    end_s, start_s = record.get("request_finished_ts"), record.get("request_received_ts")
    if not isinstance(end_s, int | float) or not isinstance(start_s, int | float):
        why = "has no request_received_ts and request_finished_ts: run SGLang with --enable-metrics"
        raise ImportRefused(source.path, place, why)
    taken = {name: record.get(key) for key, name in _TAKEN.items()}
    attributes = {
        "gen_ai.operation.name": c.CHAT,
        "gen_ai.conversation.id": trajectory,
        "heddle.run.id": run,
        "heddle.step.index": index,
        "heddle.prefill_s": _between(record, "forward_entry_time", "prefill_finished_time"),
        "heddle.decode_s": _between(record, "prefill_finished_time", "request_finished_ts"),
        "gen_ai.response.finish_reasons": _reason(record.get("finish_reason")),
        "sglang.rid": rid,
        **taken,
    }
    return span(
        ids.trace_id(run, trajectory),
        ids.span_id(run, trajectory, "sglang", rid),
        c.CHAT,
        round(start_s * 1e9),
        round(end_s * 1e9),
        attributes,
        kind=3,
    )


def _between(record: Document, first: str, last: str) -> float | None:
    began, ended = record.get(first), record.get(last)
    if isinstance(began, int | float) and isinstance(ended, int | float):
        return max(0.0, float(ended) - float(began))
    return None


def _reason(told: Any) -> Any:
    return [told.get("type")] if isinstance(told, dict) else told
