"""Spans that are put together from bytes are what the SDK's own encoder makes of them."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from heddle.collector.span_bytes import (
    LONGEST,
    REMEMBERED,
    Envelope,
    Numbers,
    Said,
    Shared,
    span_bytes,
)

TRACE, SPAN, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"
WIDE = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=LONGEST + 40)
VALUE = st.one_of(
    st.booleans(),
    WIDE,
    st.integers(-200, 200),
    st.floats(allow_nan=False),
    TEXT,
    st.binary(max_size=20),
    st.lists(TEXT, min_size=1, max_size=3),
)
ATTRIBUTES = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200), VALUE, max_size=8
)
RESOURCE = {"service.name": "s", "service.instance.id": "i"}


def sampled(span_id):
    flags = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(int(TRACE, 16), int(span_id, 16), is_remote=False, trace_flags=flags)


def by_the_sdk(attributes, error, start_ns, end_ns):
    span = ReadableSpan(
        "chat m",
        sampled(SPAN),
        sampled(PARENT),
        Resource(RESOURCE),
        {**attributes, **({"error.type": error} if error else {})},
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, error) if error else Status(StatusCode.UNSET),
        start_time=start_ns,
        end_time=end_ns,
        instrumentation_scope=InstrumentationScope("heddle", "1"),
    )
    return encode_spans([span])


def by_us(attributes, error=None, start_ns=1, end_ns=2):
    span = span_bytes("chat m", TRACE, SPAN, PARENT, start_ns, end_ns, attributes, error)
    return ExportTraceServiceRequest.FromString(Envelope(RESOURCE, "heddle", "1").request([span]))


def pairs(request):
    span = request.resource_spans[0].scope_spans[0].spans[0]
    return [(pair.key, pair.value) for pair in span.attributes]


@given(ATTRIBUTES, st.sampled_from([None, "timeout"]), st.integers(1, 1 << 62), st.integers(0, 99))
def test_it_equals_the_sdks_encoding(attributes, error, start_ns, longer_ns):
    theirs = by_the_sdk(attributes, error, start_ns, start_ns + longer_ns)
    ours = by_us(attributes, error, start_ns, start_ns + longer_ns)
    # The SDK sends a resource's attributes in an order of its own and scope spans alike.
    assert ours == theirs


@given(ATTRIBUTES)
def test_a_second_time_gives_the_same_bytes(attributes):
    assert by_us(attributes) == by_us(attributes)


@given(ATTRIBUTES, ATTRIBUTES, st.floats())
def test_shared_attributes_are_the_same_span_whether_encoded_before_or_now(shared, own, seconds):
    own = {f"own.{name}": value for name, value in own.items()}
    common, measured = Shared({**shared, "absent": None}), {"number.a": 1.5, "number.b": seconds}
    for _ in range(2):
        said = Said((common, Shared({"second": 1})), Numbers(*measured), tuple(measured.values()))
        said.update(own)
        assert dict(said) == {**measured, **shared, "absent": None, "second": 1, **own}
        whole = {**measured, **shared, "second": 1, **own}
        plain = span_bytes("s", TRACE, SPAN, None, 1, 2, whole, None)
        assert span_bytes("s", TRACE, SPAN, None, 1, 2, said, None) == plain


def test_true_one_and_one_point_zero_stay_apart():
    kinds = [value.WhichOneof("value") for _, value in pairs(by_us({"a": True, "b": 1, "c": 1.0}))]
    assert kinds == ["bool_value", "int_value", "double_value"]
    swapped = pairs(by_us({"a": 1, "b": 1.0, "c": True}))
    assert [v.WhichOneof("value") for _, v in swapped] == [
        "int_value",
        "double_value",
        "bool_value",
    ]


def test_a_text_and_a_list_of_that_text_stay_apart():
    text, listed = pairs(by_us({"a": "x"})), pairs(by_us({"a": ["x"]}))
    assert text[0][1].string_value == "x"
    assert [v.string_value for v in listed[0][1].array_value.values] == ["x"]


def test_what_otlp_cannot_carry_becomes_text_and_none_is_left_out():
    odd = {"huge": 1 << 70, "none": None, "map": {"a": [1]}, "lone": "\ud800", "nan": math.nan}
    found = dict(pairs(by_us(odd)))
    assert found["huge"].string_value == str(1 << 70)
    assert found["map"].string_value == '{"a": [1]}'
    assert found["lone"].string_value == "?"
    assert math.isnan(found["nan"].double_value)
    assert "none" not in found


def test_more_values_than_are_remembered_are_all_right():
    for number in range(REMEMBERED + 10):
        value = (
            pairs(by_us({"k": f"v{number}"}))[0][1].string_value if number % 5_000 == 0 else None
        )
        span_bytes("s", TRACE, SPAN, None, 1, 2, {"k": f"v{number}"}, None)
        assert value in (None, f"v{number}")
    assert pairs(by_us({"k": "v0"}))[0][1].string_value == "v0"
