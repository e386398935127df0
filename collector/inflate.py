"""What does a compressed body hold, without ever holding more than the limit?"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from typing import Final

import zstandard

# zlib's own choice of gzip or zlib header: Python senders call zlib.compress for "deflate".
_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32


class UnknownEncoding(ValueError):
    """A Content-Encoding nobody here can undo."""


class TooLarge(ValueError):
    """More bytes than the limit."""


class Damaged(ValueError):
    """The bytes are not what their encoding says."""


def inflate(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """The body without its Content-Encoding, at most *limit_bytes* long."""
    undo = _UNDO.get(encoding.strip().lower())
    if undo is None:
        message = f"Content-Encoding {encoding!r} is not known; send gzip, deflate, zstd or none"
        raise UnknownEncoding(message)
    plain = undo(body, limit_bytes)
    if len(plain) > limit_bytes:
        message = f"the body is larger than {limit_bytes} bytes once decompressed"
        raise TooLarge(message)
    return plain


def _zlib(body: bytes, limit_bytes: int) -> bytes:
    undo = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        plain = undo.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        message = f"the body is not gzip or deflate: {error}"
        raise Damaged(message) from error
    if len(plain) <= limit_bytes and not undo.eof:
        message = "the compressed body is cut short"
        raise Damaged(message)
    return plain


def _zstd(body: bytes, limit_bytes: int) -> bytes:
    try:
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body)) as reader:
            return reader.read(limit_bytes + 1)
    except (zstandard.ZstdError, MemoryError) as error:
        message = f"the body is not zstd: {error}"
        raise Damaged(message) from error


_UNDO: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "": lambda body, _: body,
    "identity": lambda body, _: body,
    "gzip": _zlib,
    "deflate": _zlib,
    "zstd": _zstd,
}
