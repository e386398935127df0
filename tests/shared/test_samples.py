"""Every trace of the shared samples imports, or is refused with the sentence that helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle.collector.client import CollectorClient
from heddle.collector.importers.documents import ImportRefused, Source
from heddle.collector.importers.send import send
from heddle.collector.service import running
from heddle.collector.settings import CollectorSettings

SAMPLES = Path(__file__).resolve().parents[2].parent / "shared" / "samples"
# Format, spans in the file, spans with an id of their own.
IMPORTED = {
    "open-telemetry__trace.json": ("otlp-json", 1, 1),
    "jaegertracing__otlp2jaeger-in.json": ("otlp-json", 2, 1),
    "dazzaji__test-traces.json": ("otlp-json", 2, 2),
    "agentevals-dev__helm.json": ("jaeger-json", 96, 96),
    "agentevals-dev__tempo_export_with_batches.json": ("tempo", 86, 86),
}
ZEROS = "langwatch__claude_code.json"
REFUSED = {
    "langfuse__claude-agent-2025-12-22.trace.json": "exported by Langfuse",
    "langfuse__google-adk-2025-08-28.trace.json": "exported by Langfuse",
    "langfuse__langgraph-python-2025-08-22.trace.json": "exported by Langfuse",
    "langfuse__openai-agents-2025-09-30.trace.json": "exported by Langfuse",
    "arize-ai__harbor_openhands.json": "ATIF trajectory",
    "arize-ai__parallel_tools_mixed_results.json": "ATIF trajectory",
    "arize-ai__all-spans.json": "JavaScript SDK",
    "arize-ai__openinference_client_span_tool_calls.json": "attributes of one span",
    "arize-ai__otel_genai_client_span_tool_calls.json": "attributes of one span",
    "arize-ai__otel_genai_deprecated_client_span_tool_calls.json": "attributes of one span",
    "inspect_ai__popularity.json": "Inspect evaluation log",
    "mini-swe-agent__github_issue.traj.json": "chat messages",
    "strands-evals__adk_live_spans.json": "readable spans of one SDK",
    "strands-evals__openai_agents_genai_live_spans.json": "readable spans of one SDK",
    "strands-evals__otel_genai_convention_spans.json": "readable spans of one SDK",
}


@pytest.fixture(scope="module")
def collector(tmp_path_factory):
    data = tmp_path_factory.mktemp("samples")
    settings = CollectorSettings(data_dir=data, http_port=0, grpc_port=0, query_port=0)
    with running(settings) as ports, CollectorClient(f"http://127.0.0.1:{ports.query}") as client:
        yield f"http://127.0.0.1:{ports.http}", client


def stored(client: CollectorClient) -> int:
    return client.sql("SELECT count(*) AS n FROM everything")["n"].item()


def test_every_sample_is_named_here():
    assert {*IMPORTED, *REFUSED, ZEROS} == {p.name for p in SAMPLES.glob("*.json")}


@pytest.mark.parametrize("name", IMPORTED)
def test_a_trace_imports_whole_and_only_once(collector, name):
    url, client = collector
    kind, spans, distinct = IMPORTED[name]
    before = stored(client)
    for _ in range(2):
        sent = send(kind, Source(SAMPLES / name), url)
        assert (sent.spans, sent.rejected, sent.first_rejection) == (spans, 0, "")
    assert stored(client) - before == distinct


def test_a_span_that_no_store_could_keep_is_rejected_by_name(collector):
    sent = send("otlp-json", Source(SAMPLES / ZEROS), collector[0])
    assert (sent.spans, sent.rejected) == (1, 1)
    assert "the trace id is all zeros" in sent.first_rejection


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("kind", ["otlp-json", "tempo", "jaeger-json"])
def test_what_is_no_trace_is_refused_with_what_to_do(collector, name, kind):
    with pytest.raises(ImportRefused, match=REFUSED[name]) as refused:
        send(kind, Source(SAMPLES / name), collector[0])
    assert str(SAMPLES / name) in str(refused.value)


@pytest.mark.parametrize("name", IMPORTED)
def test_the_wrong_format_names_the_right_one(collector, name):
    kind = IMPORTED[name][0]
    for other in {"otlp-json", "tempo", "jaeger-json"} - {kind}:
        with pytest.raises(ImportRefused, match=rf"heddle import {kind}|line 2|not JSON"):
            send(other, Source(SAMPLES / name), collector[0])
