"""How is the collector doing, in Prometheus' own text?

Read from counters that are kept anyway; a scrape runs no query. docs/alerts.yml holds the rules
that watch these names.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping
from typing import Final

from heddle.collector.ingest import Ingest
from heddle.collector.store import Store

MEDIA: Final = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[Mapping[str, str], float]


def render(store: Store, ingest: Ingest) -> str:
    """Every metric, each with its help and type."""
    lines: list[str] = []
    for name, kind, meaning, samples in (*_ingest(store, ingest), *_store(store)):
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{_labels(labels)} {value:g}" for labels, value in samples]
    return "\n".join([*lines, *_commits(store)]) + "\n"


Metric = tuple[str, str, str, Iterable[Sample]]


def _one(name: str, kind: str, meaning: str, value: float) -> Metric:
    return name, kind, meaning, [({}, value)]


def _ingest(store: Store, ingest: Ingest) -> list[Metric]:
    counts = ingest.counts
    rejected = [({"reason": r}, float(n)) for r, n in sorted(counts.rejected.items())]
    refused = [({"reason": r}, float(n)) for r, n in sorted(counts.refused.items())]
    drops = [({"service": s}, float(n)) for s, n in sorted(counts.sender_drops.items())]
    c, g = "counter", "gauge"
    return [
        _one("heddle_requests_total", c, "Trace requests taken up.", counts.requests),
        _one("heddle_spans_accepted_total", c, "Spans acknowledged.", counts.spans),
        ("heddle_spans_rejected_total", c, "Spans named in a partial success.", rejected),
        ("heddle_requests_refused_total", c, "Requests turned away for good.", refused),
        _one(
            "heddle_requests_overloaded_total",
            c,
            "Requests refused for room, to be sent again.",
            counts.overloaded_requests,
        ),
        _one(
            "heddle_content_left_out_total",
            c,
            "Values of messages, prompts, arguments and results not kept as sent.",
            ingest.content_left_out,
        ),
        _one("heddle_decoder_deaths_total", c, "Decoding processes that died.", ingest.deaths),
        ("heddle_sender_dropped_spans", g, "What senders say they could not send.", drops),
        _one("heddle_arrived_bytes", g, "Bodies received and not answered.", ingest.arrived_bytes),
        _one("heddle_queue_bytes", g, "Spans that wait for the disk.", store.waiting_bytes),
        _one("heddle_queue_bound_bytes", g, "Above it senders are refused.", store.bound_bytes),
        _one("heddle_ingest_lag_seconds", g, "Age of the oldest unanswered request.", ingest.lag_s),
    ]


def _store(store: Store) -> list[Metric]:
    c, g = "counter", "gauge"
    age_s = time.time() - store.newest_ns / 1e9 if store.newest_ns else 0.0
    free = shutil.disk_usage(store.path.parent).free
    return [
        _one("heddle_spans_stored_total", c, "Spans new or replaced.", store.stored),
        _one("heddle_spans_duplicate_total", c, "Spans that were stored before.", store.duplicates),
        _one("heddle_spans_folded_total", c, "Engine slices counted, not kept.", store.folded),
        _one("heddle_commit_failures_total", c, "Requests a commit failed for.", store.failures),
        _one("heddle_reopened_total", c, "Times the file was opened anew.", store.reopened),
        _one("heddle_newest_span_age_seconds", g, "Since the latest span that was stored.", age_s),
        _one("heddle_disk_free_bytes", g, "Where the file is.", free),
        _one("heddle_file_bytes", g, "The file itself.", store.path.stat().st_size),
    ]


def _commits(store: Store) -> list[str]:
    """A histogram, cumulative as Prometheus wants it."""
    name = "heddle_commit_seconds"
    lines = [f"# HELP {name} One transaction.", f"# TYPE {name} histogram"]
    told = 0
    for edge, count in zip((*store.commits.edges, None), store.commits.counts, strict=True):
        told += count
        lines.append(f'{name}_bucket{{le="{"+Inf" if edge is None else f"{edge:g}"}"}} {told}')
    return [*lines, f"{name}_sum {store.commits.total_s:.6f}", f"{name}_count {told}"]


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
