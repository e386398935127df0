"""Which spans does an engine send of a request, whichever kind it is?

Claims without an engine: a tier imports them and brings `engine`, `http` and `spans`, what stands
behind the engine's OTLP endpoint.
"""

from __future__ import annotations

import httpx
from contract_calls import Engine, body_of, prompt, through_the_port
from span_sink import SpanSink, attributes


def test_an_engine_that_traces_says_so(engine: Engine) -> None:
    can = through_the_port(engine.url, lambda port: port.capabilities())
    assert can.trace
    assert not any("spans" in sentence for sentence in can.missing)


def test_spans_of_a_request_hang_below_the_traceparent_it_came_with(
    http: httpx.Client, spans: SpanSink
) -> None:
    trace, parent = "5af1" * 8, "00f067aa0ba902b7"
    headers = {"traceparent": f"00-{trace}-{parent}-01"}
    body = body_of(prompt(41, 30), 6, rid="span41-0-0")
    assert http.post("/generate", json=body, headers=headers).status_code == 200
    found = spans.of(trace, "Req", "prefill_forward", "decode_forward")
    (root,) = [span for span in found if span.name.strip().startswith("Req")]
    assert root.parent_span_id.hex() == parent
    said = attributes(root)
    assert said["gen_ai.request.id"] == "span41-0-0"
    assert (said["gen_ai.usage.prompt_tokens"], said["gen_ai.usage.completion_tokens"]) == (30, 6)
    names = {span.name for span in found}
    assert {"prefill_forward", "decode_forward"} <= names
    known = {span.span_id for span in found}
    assert all(span.parent_span_id in known for span in found if span is not root)


def test_a_traceparent_that_is_not_sampled_makes_no_span(
    http: httpx.Client, spans: SpanSink
) -> None:
    quiet, loud = "c0de" * 8, "beef" * 8
    for trace, flags in ((quiet, "00"), (loud, "01")):
        headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-{flags}"}
        http.post("/generate", json=body_of(prompt(42, 8), 2), headers=headers)
    # The later one has arrived, so would the earlier one have.
    assert spans.of(loud, "Req")
    assert spans.of(quiet, "Req", within_s=0.0) == []
