"""A file is not what it was said to be: what is it, then, and what can be done?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final


def _has(*keys: str) -> Callable[[Any], bool]:
    return lambda d: isinstance(d, dict) and all(key in d for key in keys)


def _lists(*keys: str) -> Callable[[Any], bool]:
    return lambda d: isinstance(d, list) and bool(d) and _has(*keys)(d[0])


def _is_jaeger(document: Any) -> bool:
    data = document.get("data") if isinstance(document, dict) else None
    return isinstance(data, list) and bool(data) and _has("traceID", "spans")(data[0])


KNOWN: Final[tuple[tuple[Callable[[Any], bool], str], ...]] = (
    (_has("resourceSpans"), "it is OTLP/JSON: heddle import otlp-json"),
    (_has("batches"), "it is a Tempo export: heddle import tempo"),
    (_is_jaeger, "it is a Jaeger export: heddle import jaeger-json"),
    (_has("request_parameters"), "it is SGLang's metrics file: heddle import sglang-metrics"),
    (
        _has("resourceLogs"),
        "it holds logs, and Heddle keeps traces; send logs to a log store",
    ),
    (
        _has("resourceMetrics"),
        "it holds metrics, and Heddle keeps traces; send metrics to a metrics store",
    ),
    (
        _has("trace", "observations"),
        "it is a trace exported by Langfuse, whose observations are no spans; send the same traces "
        "to Heddle over OTLP",
    ),
    (
        _has("schema_version", "session_id", "steps"),
        "it is an ATIF trajectory, which has steps but no spans; instrument the agent with OTLP",
    ),
    (
        _has("eval", "samples"),
        "it is an Inspect evaluation log, which has no spans; enable OTLP tracing in Inspect",
    ),
    (
        _lists("role", "content"),
        "it is a list of chat messages, without times or ids of spans; instrument the agent with "
        "OTLP",
    ),
    (
        _lists("trace_id", "span_id", "start_time"),
        "it is a list of readable spans of one SDK, not OTLP; export them with an OTLP exporter",
    ),
    (
        _lists("spanContext"),
        "it is a list of readable spans of the JavaScript SDK, not OTLP; export them with an OTLP "
        "exporter",
    ),
    (
        lambda d: isinstance(d, dict) and any(str(k).startswith(("gen_ai.", "llm.")) for k in d),
        "it is the attributes of one span, without ids or times; send the span itself over OTLP",
    ),
)


def recognised(document: Any) -> str:
    """What the document looks like and what to do, or that nothing is known of it."""
    for looks, sentence in KNOWN:
        if looks(document):
            return sentence
    return "its shape is not known to Heddle; OTLP/JSON has the key resourceSpans"
