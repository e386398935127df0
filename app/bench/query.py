"""How fast does the collector answer with ten million spans, and with two while more arrive?

The data is made by SQL (query_data.py). First the three questions of one reader on the large
store, each the median of several; then every named query, over HTTP to a collector in a
process of its own, while this one posts 5,000 spans a second to it.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from heddle.app.bench.figures import Figure, Say
from heddle.app.bench.query_data import START_NS, build
from heddle.app.supervise import free_port
from heddle.collector import ids
from heddle.collector.client import CollectorClient
from heddle.collector.queries.catalog import QUERIES
from heddle.collector.queries.sql import Limits, select
from heddle.collector.store import FILE_NAME, Store

RATE: Final = 5_000
AT_ONCE: Final = 500
SENDERS: Final = 2
"""Each waits for its answer; one alone would be held up by a commit of 0.1 s."""
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
MEDIA: Final = {"content-type": "application/x-protobuf"}
REPEATS: Final = 7
ROUNDS: Final = 60
"""Of all queries while spans arrive: of twenty the p95 of the slowest query is mere luck."""
_QUANTILES: Final = (
    "SELECT quantile_cont(duration_s, [0.5, 0.9, 0.99]), quantile_cont(output_tokens, [0.5, 0.99]),"
    " max(duration_s) FROM trajectories"
)
Filters = dict[str, list[str]]


def run(*, quick: bool, say: Say) -> dict[str, Figure]:
    """10 and 2 million spans; --quick 1 million and half a million."""
    large, small = (1_000_000, 500_000) if quick else (10_000_000, 2_000_000)
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder:
        figures = _alone(Path(folder) / "large", large, say)
        return {**figures, **_busy(Path(folder) / "small", small, say)}


def _alone(folder: Path, spans: int, say: Say) -> dict[str, Figure]:
    say(f"making {spans:,} spans")
    rollouts = build(folder / FILE_NAME, spans) // 10_241
    with closing(Store(folder / FILE_NAME, memory_limit="3GB")) as store:
        say("summing them up")
        store.rollups.refresh()
        middle = rollouts // 2
        rollout = {"run": [f"run-{middle // 50}"], "rollout": [f"r{middle:05d}"]}
        one = {"trajectory": [f"t{middle}-7"]}
        told = {
            "trajectory_by_id_ms": (lambda: _named(store, "steps", one), 20),
            "rollout_aggregates_ms": (lambda: _aggregates(store, rollout), 100),
            "quantiles_over_all_ms": (lambda: _sql(store, _QUANTILES), 1_000),
        }
        note = f"{spans:,} spans, median of {REPEATS}"
        return {
            name: Figure(_median_ms(what), "ms", target, "lower", note)
            for name, (what, target) in told.items()
        }


def _named(store: Store, name: str, filters: Filters) -> None:
    with store.reading() as cursor:
        QUERIES[name].answer(cursor, filters)


def _aggregates(store: Store, rollout: Filters) -> None:
    for name in ("rollouts", "tail"):
        _named(store, name, rollout)


def _sql(store: Store, text: str) -> None:
    with store.reading() as cursor:
        select(cursor, text, Limits())


def _median_ms(what: Callable[[], None]) -> float:
    what()
    return median(_taken_ms(what) for _ in range(REPEATS))


def _taken_ms(what: Callable[[], object]) -> float:
    began = time.perf_counter()
    what()
    return (time.perf_counter() - began) * 1e3


def _busy(folder: Path, spans: int, say: Say) -> dict[str, Figure]:
    say(f"making {spans:,} spans")
    rollouts = build(folder / FILE_NAME, spans) // 10_241
    with _collecting(folder) as (http_port, query_port):
        url = f"http://127.0.0.1:{query_port}"
        with CollectorClient(url, timeout_s=120) as client, _sending(http_port) as sent:
            client.query("runs")
            say("asking while spans arrive")
            began = time.perf_counter()
            taken = _ask(client, rollouts // 2, 5 if spans < 1_000_000 else ROUNDS)
            rate = sent() / (time.perf_counter() - began)
    worst = max(taken, key=lambda name: _p95(taken[name]))
    every = [ms for times in taken.values() for ms in times]
    note = f"{spans:,} spans there, {rate:,.0f} spans/s arriving, {len(taken)} queries"
    return {
        "page_query_p95_ms": Figure(_p95(every), "ms", 200, "lower", f"all together; {note}"),
        "slowest_query_p95_ms": Figure(_p95(taken[worst]), "ms", 200, "lower", f"{worst}; {note}"),
        "arriving_spans_per_s": Figure(rate, "spans/s", 0.95 * RATE, "higher", note),
    }


@contextmanager
def _collecting(folder: Path) -> Generator[tuple[int, int], None, None]:
    """A collector in a process of its own, as an operator runs it."""
    ports = [free_port() for _ in range(3)]
    flags = zip(("--http-port", "--query-port", "--grpc-port"), map(str, ports), strict=True)
    # The made rollouts came at instant 0: they would be sealed at once, which is another figure.
    command = [sys.executable, "-m", "heddle.app.cli", "collect", "--seal-after-s", "5e9"]
    arguments = [part for pair in flags for part in pair]
    with subprocess.Popen([*command, "--data", str(folder), *arguments]) as process:
        try:
            with CollectorClient(f"http://127.0.0.1:{ports[1]}") as client:
                client.wait_healthy(120)
            yield ports[0], ports[1]
        finally:
            process.terminate()


def _ask(client: CollectorClient, middle: int, rounds: int) -> dict[str, list[float]]:
    """Every query as a page asks it: of a rollout, or the first rows of all."""
    run, rollout = f"run-{middle // 50}", f"r{middle:05d}"
    taken: dict[str, list[float]] = {}
    for _ in range(rounds):
        for query in QUERIES.values():
            asked: dict[str, Any] = {"limit": 500}
            if "run" in query.filters:
                asked |= {"run": run}
            if "rollout" in query.needs:
                asked |= {"rollout": rollout}
            ms = _taken_ms(lambda q=query, a=asked: client.query(q.name, **a))
            taken.setdefault(query.name, []).append(ms)
    return taken


def _p95(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]


@contextmanager
def _sending(port: int) -> Generator[Callable[[], int], None, None]:
    """A thread that posts RATE spans a second; the callable says how many since the last call."""
    ended, counts, numbers = threading.Event(), [0], itertools.count()

    def post() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            due = time.monotonic()
            while not ended.is_set():
                reply = http.post("/v1/traces", content=_body(next(numbers)), headers=MEDIA)
                reply.raise_for_status()
                counts[0] += AT_ONCE
                # What a slow answer held up is not made up for: the rate is never above RATE.
                due = max(due + AT_ONCE * SENDERS / RATE, time.monotonic())
                ended.wait(max(0.0, due - time.monotonic()))

    def since() -> int:
        count, counts[0] = counts[0], 0
        return count

    threads = [threading.Thread(target=post, name="bench-sender") for _ in range(SENDERS)]
    for thread in threads:
        thread.start()
    try:
        since()
        yield since
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _body(number: int) -> bytes:
    """One request: steps of trajectories of a running rollout."""
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for index in range(number * AT_ONCE, (number + 1) * AT_ONCE):
        trajectory, step = f"live-{index % 1_024}", index // 1_024
        start_ns = START_NS + 10**17 + index * 1_000_000
        made = spans.add(
            trace_id=bytes.fromhex(ids.trace_id("run-live", trajectory)),
            span_id=bytes.fromhex(ids.step_span_id("run-live", trajectory, step)),
            name="chat",
            start_time_unix_nano=start_ns,
            end_time_unix_nano=start_ns + 10**9,
        )
        texts = {
            "heddle.run.id": "run-live",
            "heddle.rollout.id": f"live-{index // 100_000}",
            "gen_ai.conversation.id": trajectory,
            "gen_ai.operation.name": "chat",
            "heddle.worker.id": f"w{index % 8}",
        }
        for key, text in texts.items():
            made.attributes.add(key=key).value.string_value = text
        for key, count in (("heddle.step.index", step), (OUTPUT_TOKENS, 100 + index % 900)):
            made.attributes.add(key=key).value.int_value = count
        made.attributes.add(key="heddle.decode_s").value.double_value = 0.5
    return request.SerializeToString()
