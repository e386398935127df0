"""How does a finished span become OTLP bytes without an object for each of its attributes?

Protobuf allows it: a message's bytes followed by more of its fields are the message with those
fields. So a span is its head followed by attributes, most of which come again and again and are
encoded once; a request is its resource and scope followed by spans. 20 attributes cost about 12 us
where the SDK's encoder takes 170, in a thread that keeps the interpreter from the caller.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    InstrumentationScope,
    KeyValue,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

# 20,000 of at most 256 bytes are about 8 MB; long values hardly ever come twice.
REMEMBERED: Final = 20_000
LONGEST: Final = 256
FEW: Final = 4096
"""Numbers below it are remembered too."""
_INT64: Final = 1 << 63
# "Whether the parent is remote is known" (it is not remote), as the SDK sends it.
_FLAGS: Final = 0x100
_FIELD_1: Final = b"\x0a"
_FIELD_2: Final = b"\x12"
_FIELD_4: Final = b"\x22"
_TRACE_16: Final = b"\x0a\x10"
_SPAN_8: Final = b"\x12\x08"
_PARENT_8: Final = b"\x22\x08"
_ATTRIBUTE: Final = b"\x4a"
_INT_VALUE: Final = b"\x18"
_SMALL: Final = [bytes([n]) for n in range(0x80)]
_Pairs = dict[tuple[str, Any], bytes]
# One for each type: True, 1 and 1.0 are the same key.
_texts: Final[_Pairs] = {}
_counts: Final[_Pairs] = {}
_bools: Final[_Pairs] = {}
_lists: Final[_Pairs] = {}
_keys: Final[dict[str, bytes]] = {}
_doubles: Final[dict[str, bytes]] = {}
_names: Final[dict[str, bytes]] = {}
_double: Final = struct.Struct("<d")
_times: Final = struct.Struct("<BQBQ")
_START, _END = 0x39, 0x41
_ORDINARY: Final = Span(
    flags=_FLAGS, kind=Span.SPAN_KIND_INTERNAL, status=Status()
).SerializeToString()
"""What every span says; one that failed says its status after it."""


class Shared:
    """Attributes that many spans have in common, encoded when the first of them leaves."""

    __slots__ = ("_body", "attributes")

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self.attributes = dict(attributes)
        self._body = b""

    @property
    def body(self) -> bytes:
        """As fields of a span."""
        if not self._body:
            said = [(k, v) for k, v in self.attributes.items() if v is not None]
            self._body = b"".join([_pair(k, v) for k, v in said])
        return self._body


class Numbers:
    """Attributes that are floats, always the same ones together: packed in one call."""

    __slots__ = ("_around", "_pack", "names")

    def __init__(self, *names: str) -> None:
        heads = [_encoded(name, 0.0)[:-8] for name in names]
        self.names = names
        self._pack = struct.Struct("<" + "".join(f"{len(head)}sd" for head in heads)).pack
        self._around: list[Any] = [part for head in heads for part in (head, 0.0)]

    def packed(self, values: Sequence[float]) -> bytes:
        """As fields of a span."""
        parts = self._around.copy()
        parts[1::2] = values
        return self._pack(*parts)


class Said(dict[str, Any]):
    """The attributes of one span: shared ones, then numbers, then its own, all of other names."""

    __slots__ = ("_numbers", "_shared", "_values", "ahead")

    def __init__(self, shared: Sequence[Shared], numbers: Numbers, values: Sequence[float]) -> None:
        super().__init__(zip(numbers.names, values, strict=True))
        for one in shared:
            self.update(one.attributes)
        self._shared, self._numbers, self._values = shared, numbers, values
        self.ahead = len(self)
        """How many of them need not be encoded one by one."""

    @property
    def body(self) -> bytes:
        """Those, as fields of a span."""
        known = [one.body for one in self._shared]
        return b"".join([self._numbers.packed(self._values), *known])


def span_bytes(
    name: str,
    trace_id: str,
    span_id: str,
    parent_span_id: str | None,
    start_ns: int,
    end_ns: int,
    attributes: Mapping[str, Any],
    error: str | None,
) -> bytes:
    """A Span message; None values are left out, ValueError for ids that are no hex."""
    trace, span = bytes.fromhex(trace_id), bytes.fromhex(span_id)
    parent = bytes.fromhex(parent_span_id or "")
    # An empty parent is the same as none.
    if len(trace) == 16 and len(span) == len(parent) == 8:
        ids = b"".join((_TRACE_16, trace, _SPAN_8, span, _PARENT_8, parent))
    else:
        ids = _field(_FIELD_1, trace) + _field(_FIELD_2, span) + _field(_FIELD_4, parent)
    parts = [
        ids,
        _names.get(name) or _kept(_names, name, Span(name=_clean(name)).SerializeToString()),
        _times.pack(_START, start_ns, _END, end_ns),
        _ORDINARY,
    ]
    pairs: Iterable[tuple[str, Any]] = attributes.items()
    if type(attributes) is Said:
        parts.append(attributes.body)
        pairs = islice(pairs, attributes.ahead, None)
    for key, value in pairs:
        if value is None:
            continue
        # What comes again and again, without a call: 37 attributes a step.
        kind, known = type(value), None
        if kind is str:
            known = _texts.get((key, value))
        elif kind is int:
            known = _counts.get((key, value))
        elif kind is float and (head := _doubles.get(key)) is not None:
            known = head + _double.pack(value)
        parts.append(known or _pair(key, value))
    if error:
        failed = Status(code=Status.STATUS_CODE_ERROR, message=_clean(error))
        parts += (Span(status=failed).SerializeToString(), _pair("error.type", error))
    return b"".join(parts)


class Envelope:
    """The resource and the scope that spans of one sender share."""

    def __init__(self, resource: Mapping[str, Any], scope: str, version: str) -> None:
        pairs = [
            KeyValue(key=_clean(k), value=_value(v)) for k, v in resource.items() if v is not None
        ]
        self._resource = _field(_FIELD_1, Resource(attributes=pairs).SerializeToString())
        said = InstrumentationScope(name=scope, version=version)
        self._scope = _field(_FIELD_1, said.SerializeToString())

    def request(self, spans: Iterable[bytes]) -> bytes:
        """An ExportTraceServiceRequest of those Span messages."""
        scoped = b"".join([self._scope, *(_field(_FIELD_2, span) for span in spans)])
        return _field(_FIELD_1, self._resource + _field(_FIELD_2, scoped))


def _pair(key: str, value: Any) -> bytes:
    """One attribute as the field of a span."""
    kind = type(value)
    if kind is str:
        return _texts.get((key, value)) or _remembered(_texts, key, value)
    if kind is float:
        # The eight bytes of the number come last, whatever it is.
        head = _doubles.get(key) or _kept(_doubles, key, _encoded(key, value)[:-8])
        return head + _double.pack(value)
    if kind is int and -_INT64 <= value < _INT64:
        if 0 <= value < FEW:
            return _counts.get((key, value)) or _remembered(_counts, key, value)
        number = _varint(value if value >= 0 else value + (1 << 64))
        return _field(_ATTRIBUTE, _key(key) + _field(_FIELD_2, _INT_VALUE + number))
    if kind is bool:
        return _bools.get((key, value)) or _remembered(_bools, key, value)
    if kind is list and len(value) == 1 and type(value[0]) is str:
        known = _lists.get((key, value[0]))
        return known or _kept(_lists, (key, value[0]), _encoded(key, value))
    return _encoded(key, value)


def _remembered(where: _Pairs, key: str, value: Any) -> bytes:
    """Encoded for the first time: short texts, small numbers and flags come again and again."""
    return _kept(where, (key, value), _encoded(key, value))


def _kept(where: dict[Any, bytes], name: Any, encoded: bytes) -> bytes:
    return _remember(where, name, encoded) if len(encoded) <= LONGEST else encoded


def _key(key: str) -> bytes:
    return _keys.get(key) or _kept(_keys, key, KeyValue(key=_clean(key)).SerializeToString())


def _remember(where: dict[Any, bytes], name: Any, encoded: bytes) -> bytes:
    if len(where) >= REMEMBERED:
        where.clear()
    where[name] = encoded
    return encoded


def _encoded(key: str, value: Any) -> bytes:
    return Span(attributes=[KeyValue(key=_clean(key), value=_value(value))]).SerializeToString()


def _value(value: Any) -> AnyValue:
    """What OTLP can carry: one value it cannot would lose the whole batch it travels in."""
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, bytes):
        return AnyValue(bytes_value=value)
    if isinstance(value, int) and -_INT64 <= value < _INT64:
        return AnyValue(int_value=value)
    if isinstance(value, Mapping):
        value = json.dumps(value, default=str)
    elif isinstance(value, Sequence | set | frozenset) and not isinstance(value, str):
        return AnyValue(array_value=ArrayValue(values=[_value(v) for v in value if v is not None]))
    return AnyValue(string_value=_clean(value))


def _clean(value: Any) -> str:
    """As text that UTF-8 has: protobuf raises at lone surrogates."""
    return str(value).encode("utf-8", "replace").decode()


def _field(tag: bytes, body: bytes) -> bytes:
    """A field that holds those bytes: tag, length, bytes."""
    return b"".join((tag, _varint(len(body)), body))


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow."""
    if number < 0x80:
        return _SMALL[number]
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)
