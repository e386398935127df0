"""How is the collector doing, in Prometheus' own text?

Read from counters that are kept anyway; a scrape runs no query. docs/alerts.yml holds the rules
that watch these names.
"""

from __future__ import annotations

import shutil
import time

from heddle.collector.exposition import Metric, lines_of, one
from heddle.collector.ingest import Ingest
from heddle.collector.store import Store


def render(store: Store, ingest: Ingest) -> str:
    """Every metric, each with its help and type."""
    lines = lines_of((*_ingest(store, ingest), *_store(store)))
    return "\n".join([*lines, *_commits(store)]) + "\n"


def _ingest(store: Store, ingest: Ingest) -> list[Metric]:
    counts = ingest.counts
    rejected = [({"reason": r}, float(n)) for r, n in sorted(counts.rejected.items())]
    refused = [({"reason": r}, float(n)) for r, n in sorted(counts.refused.items())]
    drops = [({"service": s}, float(n)) for s, n in sorted(counts.sender_drops.items())]
    c, g = "counter", "gauge"
    return [
        one("heddle_requests_total", c, "Trace requests taken up.", counts.requests),
        one("heddle_spans_accepted_total", c, "Spans acknowledged.", counts.spans),
        ("heddle_spans_rejected_total", c, "Spans named in a partial success.", rejected),
        ("heddle_requests_refused_total", c, "Requests turned away for good.", refused),
        one(
            "heddle_requests_overloaded_total",
            c,
            "Requests refused for room, to be sent again.",
            counts.overloaded_requests,
        ),
        one(
            "heddle_content_left_out_total",
            c,
            "Values of messages, prompts, arguments and results not kept as sent.",
            ingest.content_left_out,
        ),
        one("heddle_decoder_deaths_total", c, "Decoding processes that died.", ingest.deaths),
        ("heddle_sender_dropped_spans", g, "What senders say they could not send.", drops),
        one("heddle_arrived_bytes", g, "Bodies received and not answered.", ingest.arrived_bytes),
        one("heddle_queue_bytes", g, "Spans that wait for the disk.", store.waiting_bytes),
        one("heddle_queue_bound_bytes", g, "Above it senders are refused.", store.bound_bytes),
        one("heddle_ingest_lag_seconds", g, "Age of the oldest unanswered request.", ingest.lag_s),
    ]


def _store(store: Store) -> list[Metric]:
    c, g = "counter", "gauge"
    age_s = time.time() - store.newest_ns / 1e9 if store.newest_ns else 0.0
    free = shutil.disk_usage(store.path.parent).free
    return [
        one("heddle_spans_stored_total", c, "Spans new or replaced.", store.stored),
        one("heddle_spans_duplicate_total", c, "Spans that were stored before.", store.duplicates),
        one("heddle_spans_folded_total", c, "Engine slices counted, not kept.", store.folded),
        one("heddle_commit_failures_total", c, "Requests a commit failed for.", store.failures),
        one("heddle_reopened_total", c, "Times the file was opened anew.", store.reopened),
        one("heddle_newest_span_age_seconds", g, "Since the latest span that was stored.", age_s),
        one("heddle_disk_free_bytes", g, "Where the file is.", free),
        one("heddle_file_bytes", g, "The file itself.", store.path.stat().st_size),
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
