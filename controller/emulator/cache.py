"""Which prefix of these tokens is still in KV, and what goes when room is short?

A radix tree over token ids with SGLang's page-size-1 semantics: whole unreferenced leaves leave,
least recently used first; what a running request holds is locked. It counts tokens, it owns no
clock: every touch carries the engine's time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
# An edge keeps its tokens as raw bytes: comparing is then one memcmp, 20 times cheaper than numpy's
# array_equal on the short edges that steps and observations make.
_BYTES = 4


class Node:
    """One edge of the tree: the tokens that lead here from the parent."""

    __slots__ = ("children", "locks", "number", "parent", "raw", "used_s")

    def __init__(self, parent: Node | None, raw: bytes, used_s: float, number: int) -> None:
        self.parent = parent
        self.raw = raw
        self.children: dict[bytes, Node] = {}
        self.locks = 0
        self.used_s = used_s
        self.number = number

    @property
    def tokens(self) -> int:
        return len(self.raw) // _BYTES


class PrefixCache:
    """Tokens held = locked + evictable; the caller keeps held + its own <= capacity."""

    def __init__(self) -> None:
        self._numbers = 0
        self.root = Node(None, b"", 0.0, 0)
        self.locked_tokens = 0
        self.evictable_tokens = 0
        self.evicted_tokens = 0

    @property
    def held_tokens(self) -> int:
        return self.locked_tokens + self.evictable_tokens

    def match(self, ids: Ids, now_s: float) -> tuple[int, Node]:
        """How many leading tokens are held, and the node they end in; touches the path."""
        return self._match(ids.tobytes(), now_s)

    def insert(self, ids: Ids, now_s: float) -> tuple[int, Node]:
        """Hold these tokens; returns how many were held already and the node they end in."""
        raw = ids.tobytes()
        held, node = self._match(raw, now_s)
        if held == len(ids):
            return held, node
        leaf = self._node(node, raw[held * _BYTES :], now_s)
        node.children[leaf.raw[:_BYTES]] = leaf
        self.evictable_tokens += leaf.tokens
        return held, leaf

    def _match(self, raw: bytes, now_s: float) -> tuple[int, Node]:
        node, at = self.root, 0
        while at < len(raw):
            child = node.children.get(raw[at : at + _BYTES])
            if child is None:
                break
            whole = raw.startswith(child.raw, at)
            if not whole:
                child = self._split(child, _common(child.raw, raw[at : at + len(child.raw)]))
            child.used_s = now_s
            node, at = child, at + len(child.raw)
            if not whole:
                break
        return at // _BYTES, node

    def lock(self, node: Node) -> None:
        """Keep the path to that node until it is unlocked as often."""
        for step in _path(node):
            if step.locks == 0:
                self.evictable_tokens -= step.tokens
                self.locked_tokens += step.tokens
            step.locks += 1

    def unlock(self, node: Node) -> None:
        for step in _path(node):
            step.locks -= 1
            if step.locks == 0:
                self.evictable_tokens += step.tokens
                self.locked_tokens -= step.tokens

    def evict(self, tokens: int) -> int:
        """Drop unlocked leaves, oldest first, until that many tokens went; how many did."""
        if tokens <= 0:
            return 0
        heap = [(leaf.used_s, leaf.number, leaf) for leaf in self._leaves()]
        heapq.heapify(heap)
        gone = 0
        while gone < tokens and heap:
            _, _, leaf = heapq.heappop(heap)
            parent = leaf.parent
            assert parent is not None
            del parent.children[leaf.raw[:_BYTES]]
            gone += leaf.tokens
            if not parent.children and parent.locks == 0 and parent is not self.root:
                heapq.heappush(heap, (parent.used_s, parent.number, parent))
        self.evictable_tokens -= gone
        self.evicted_tokens += gone
        return gone

    def flush(self) -> None:
        """Forget everything; only an engine without running requests may."""
        self.root = Node(None, b"", 0.0, 0)
        self.locked_tokens = self.evictable_tokens = 0

    def nodes(self) -> Iterator[Node]:
        """Every edge, parents first."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _leaves(self) -> list[Node]:
        return [node for node in self.nodes() if not node.children and node.locks == 0]

    def _node(self, parent: Node, raw: bytes, used_s: float) -> Node:
        self._numbers += 1
        return Node(parent, raw, used_s, self._numbers)

    def _split(self, child: Node, at: int) -> Node:
        """Cut an edge in two; the upper part inherits locks and age. Counts do not change."""
        parent = child.parent
        assert parent is not None
        cut = at * _BYTES
        upper = self._node(parent, child.raw[:cut], child.used_s)
        upper.locks = child.locks
        parent.children[upper.raw[:_BYTES]] = upper
        child.raw = child.raw[cut:]
        child.parent = upper
        upper.children[child.raw[:_BYTES]] = child
        return upper


def _path(node: Node) -> Iterator[Node]:
    """From the node up to, not including, the root."""
    while node.parent is not None:
        yield node
        node = node.parent


def _common(left: bytes, right: bytes) -> int:
    """Tokens that two differing edges share from the start."""
    size = min(len(left), len(right))
    one, other = (np.frombuffer(raw, dtype=np.int32, count=size // _BYTES) for raw in (left, right))
    differs = one != other
    return int(differs.argmax()) if differs.any() else size // _BYTES
