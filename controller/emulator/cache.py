"""Which prefix of these tokens is still in KV?

A radix tree over token ids. It owns no clock: every touch carries the engine's time.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from heddle.controller.emulator.tree import Node, Tree

Ids: TypeAlias = NDArray[np.int32]
# An edge keeps its tokens as raw bytes: comparing is then one memcmp, 20 times cheaper than numpy's
# array_equal on the short edges that steps and observations make.
_BYTES = 4


class PrefixCache(Tree[Ids]):
    """Prefixes of token ids."""

    def match(self, context: Ids, size: int, now_s: float) -> tuple[int, Node]:
        """How many of the first `size` ids are held, and where they end; touches the path."""
        return self._match(context[:size].tobytes(), now_s)

    def _put(self, context: Ids, size: int, now_s: float) -> tuple[int, Node]:
        raw = context[:size].tobytes()
        held, node = self._match(raw, now_s)
        if held == size:
            return held, node
        rest = raw[held * _BYTES :]
        return held, self._leaf(node, rest[:_BYTES], rest, size, now_s)

    def context_of(self, leaf: Node) -> tuple[Ids, int]:
        """The ids from the root to its end."""
        parts, node = list[bytes](), leaf
        while node.parent is not None:
            parts.append(node.what)
            node = node.parent
        return np.frombuffer(b"".join(reversed(parts)), dtype=np.int32), leaf.end

    def _match(self, raw: bytes, now_s: float) -> tuple[int, Node]:
        node, at = self.root, 0
        while at < len(raw):
            child = node.children.get(raw[at : at + _BYTES])
            if child is None:
                break
            whole = raw.startswith(child.what, at)
            if not whole:
                child = self._split(child, _common(child.what, raw[at : at + len(child.what)]))
            child.used_s = now_s
            node, at = child, child.end * _BYTES
            if not whole:
                break
        return at // _BYTES, node

    def _split(self, child: Node, tokens: int) -> Node:
        cut = tokens * _BYTES
        upper, child.what = child.what[:cut], child.what[cut:]
        return self._cut(child, child.start + tokens, upper, child.what[:_BYTES])


def _common(left: bytes, right: bytes) -> int:
    """Tokens that two differing edges share from the start."""
    size = min(len(left), len(right))
    one, other = (np.frombuffer(raw, dtype=np.int32, count=size // _BYTES) for raw in (left, right))
    differs = one != other
    return int(differs.argmax()) if differs.any() else size // _BYTES
