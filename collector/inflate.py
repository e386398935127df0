"""What does a compressed body hold, without ever holding more than the limit?

Read in pieces. A body that grows past a quarter of the limit is first counted to its end without
being kept, so that a bomb costs time and no memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Final

import zstandard

_PIECE_BYTES: Final = 1 << 20
# zlib's own choice of gzip or zlib header: Python senders call zlib.compress for "deflate".
_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32
_RAW: Final = -zlib.MAX_WBITS
# A block of four bytes can stand for 128 kB: so much in gives at most 8 MB out at once.
_ZSTD_BYTES: Final = 256
_CUT: Final = "the compressed body is cut short"


class UnknownEncoding(ValueError):
    """A Content-Encoding nobody here can undo."""


class TooLarge(ValueError):
    """More bytes than the limit."""


class Damaged(ValueError):
    """The bytes are not what their encoding says."""


def inflate(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """The body without its Content-Encoding, at most *limit_bytes* long."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    pieces = _UNDO.get(name)
    if pieces is None:
        message = f"Content-Encoding {encoding!r} is not known; send gzip, deflate, zstd or none"
        raise UnknownEncoding(message)
    size, kept = 0, list[bytes]()
    for piece in pieces(body):
        size += len(piece)
        if size > limit_bytes:
            message = f"the body is larger than {limit_bytes} bytes once decompressed"
            raise TooLarge(message)
        if size <= limit_bytes // 4:
            kept.append(piece)
        else:
            kept.clear()
    return b"".join(kept) if size <= limit_bytes // 4 else b"".join(pieces(body))


def _zlib(body: bytes) -> Iterator[bytes]:
    yield from _inflated(body, _GZIP_OR_ZLIB)


def _deflate(body: bytes) -> Iterator[bytes]:
    """With zlib's header as the standard says, or raw as some senders understand it."""
    try:
        zlib.decompressobj().decompress(body[:64], 1)
    except zlib.error:
        yield from _inflated(body, _RAW)
    else:
        yield from _inflated(body, _GZIP_OR_ZLIB)


def _inflated(body: bytes, window: int) -> Iterator[bytes]:
    undo, rest = zlib.decompressobj(window), body
    while not undo.eof:
        try:
            piece = undo.decompress(rest, _PIECE_BYTES)
        except zlib.error as error:
            message = f"the body is not gzip or deflate: {error}"
            raise Damaged(message) from error
        rest = undo.unconsumed_tail
        if not piece and not rest and not undo.eof:
            raise Damaged(_CUT)
        yield piece
        if undo.eof and undo.unused_data.strip(b"\0"):
            # Several gzip members one after the other are one body.
            undo, rest = zlib.decompressobj(window), undo.unused_data


def _zstd(body: bytes) -> Iterator[bytes]:
    undo = zstandard.ZstdDecompressor().decompressobj()
    try:
        for begin in range(0, len(body), _ZSTD_BYTES):
            rest = body[begin : begin + _ZSTD_BYTES]
            while rest:
                if undo.eof:
                    undo = zstandard.ZstdDecompressor().decompressobj()
                yield undo.decompress(rest)
                rest = undo.unused_data if undo.eof else b""
    except (zstandard.ZstdError, MemoryError) as error:
        message = f"the body is not zstd: {error}"
        raise Damaged(message) from error
    if not undo.eof:
        raise Damaged(_CUT)


_UNDO: Final[dict[str, Callable[[bytes], Iterator[bytes]]]] = {
    "gzip": _zlib,
    "deflate": _deflate,
    "zstd": _zstd,
}
