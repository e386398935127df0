"""How do DCGM's SM-active samples become rows beside the spans?

CSV with the columns host, gpu, time and sm_active (and worker, where known), or the JSON that
Prometheus answers to query_range of DCGM_FI_PROF_SM_ACTIVE. Time is Unix seconds or ISO 8601 with
its zone; SM-active a share from 0 to 1.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from heddle.collector import conventions as c
from heddle.collector import ids
from heddle.collector.importers.documents import (
    Document,
    Found,
    ImportRefused,
    Source,
    parsed,
    span,
    text_of,
)

NEEDED: Final = ("host", "gpu", "time", "sm_active")
_HOST: Final = ("Hostname", "host", "node", "instance")
"""Labels that name the machine: dcgm-exporter's own first."""
_GPU: Final = ("gpu", "UUID", "device")


def read(source: Source) -> Iterator[Found]:
    """Every sample, the file's GPUs one after the other or as the rows come."""
    if source.run is None:
        raise ImportRefused(source.path, "", "names no run; add --run RUN")
    text = text_of(source.path)
    samples = _prometheus if text.lstrip().startswith(b"{") else _table
    for place, sample in samples(source, text):
        spans = [_span(source, source.run, place, sample)]
        yield Found(spans, place, {"service.name": "dcgm"}, "dcgm")


def _table(source: Source, text: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
    rows = csv.DictReader(text.decode(errors="replace").splitlines())
    missing = [name for name in NEEDED if name not in (rows.fieldnames or ())]
    if missing:
        raise ImportRefused(source.path, "line 1", f"lacks the columns {', '.join(missing)}")
    for row in rows:
        yield f"line {rows.line_num}", row


def _prometheus(source: Source, text: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
    document = parsed(source.path, text)
    series = (document.get("data") or {}).get("result")
    if not isinstance(series, list):
        why = "is no answer of Prometheus to query_range: it has no data.result"
        raise ImportRefused(source.path, "", why)
    for number, one in enumerate(series):
        place, labels = f"series {number}", one.get("metric") or {}
        whose = {"host": _first(labels, _HOST), "gpu": _first(labels, _GPU)}
        for at, value in one.get("values") or ():
            said = {**whose, "worker": labels.get("worker"), "time": at, "sm_active": value}
            yield place, said


def _first(labels: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((labels[name] for name in names if labels.get(name)), None)


def _span(source: Source, run: str, place: str, sample: Mapping[str, Any]) -> Document:
    host, gpu = (str(sample[name] or "") for name in ("host", "gpu"))
    if not host or not gpu:
        raise ImportRefused(source.path, place, "does not say which GPU of which host it is of")
    at_ns = _time_ns(source, place, sample["time"])
    said = {
        "gen_ai.operation.name": c.DEVICE,
        "heddle.run.id": run,
        "heddle.worker.id": sample.get("worker") or None,
        "heddle.device.host": host,
        "heddle.device.gpu": gpu,
        "heddle.device.sm_active": _share(source, place, sample["sm_active"]),
    }
    trace = ids.trace_id(run, f"device/{host}/{gpu}")
    return span(trace, ids.span_id(run, "device", host, gpu, at_ns), c.DEVICE, at_ns, at_ns, said)


def _time_ns(source: Source, place: str, given: Any) -> int:
    try:
        return round(float(given) * 1e9)
    except (TypeError, ValueError):
        pass
    try:
        at = datetime.fromisoformat(str(given))
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        why = f"time is {given!r}; expected Unix seconds or ISO 8601 with its zone"
        raise ImportRefused(source.path, place, why)
    return round(at.timestamp() * 1e6) * 1000


def _share(source: Source, place: str, given: Any) -> float | None:
    """None for a blank or NaN: a sample that says nothing (DCGM's blank values come as such)."""
    try:
        value = float(given or "nan")
    except (TypeError, ValueError):
        raise ImportRefused(source.path, place, f"sm_active is {given!r}, no number") from None
    if math.isnan(value):
        return None
    if 0 <= value <= 1:
        return value
    why = f"sm_active is {given!r}; expected a share from 0 to 1"
    raise ImportRefused(source.path, place, why)
