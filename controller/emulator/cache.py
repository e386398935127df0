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
_EMPTY: Ids = np.empty(0, dtype=np.int32)


class Node:
    """One edge of the tree: the tokens that lead here from the parent."""

    __slots__ = ("children", "ids", "locks", "number", "parent", "used_s")

    def __init__(self, parent: Node | None, ids: Ids, used_s: float, number: int) -> None:
        self.parent = parent
        self.ids = ids
        self.children: dict[int, Node] = {}
        self.locks = 0
        self.used_s = used_s
        self.number = number


class PrefixCache:
    """Tokens held = locked + evictable; the caller keeps held + its own <= capacity."""

    def __init__(self) -> None:
        self._numbers = 0
        self.root = Node(None, _EMPTY, 0.0, 0)
        self.locked_tokens = 0
        self.evictable_tokens = 0
        self.evicted_tokens = 0

    @property
    def held_tokens(self) -> int:
        return self.locked_tokens + self.evictable_tokens

    def match(self, ids: Ids, now_s: float) -> tuple[int, Node]:
        """How many leading tokens are held, and the node they end in; touches the path."""
        node, at = self.root, 0
        while at < len(ids):
            child = node.children.get(int(ids[at]))
            if child is None:
                break
            common = _common(child.ids, ids[at:])
            if common < len(child.ids):
                child = self._split(child, common)
            child.used_s = now_s
            node, at = child, at + common
            if common == 0:
                break
        return at, node

    def insert(self, ids: Ids, now_s: float) -> tuple[int, Node]:
        """Hold these tokens; returns how many were held already and the node they end in."""
        held, node = self.match(ids, now_s)
        if held == len(ids):
            return held, node
        leaf = self._node(node, ids[held:].copy(), now_s)
        node.children[int(ids[held])] = leaf
        self.evictable_tokens += len(leaf.ids)
        return held, leaf

    def lock(self, node: Node) -> None:
        """Keep the path to that node until it is unlocked as often."""
        for step in _path(node):
            if step.locks == 0:
                self.evictable_tokens -= len(step.ids)
                self.locked_tokens += len(step.ids)
            step.locks += 1

    def unlock(self, node: Node) -> None:
        for step in _path(node):
            step.locks -= 1
            if step.locks == 0:
                self.evictable_tokens += len(step.ids)
                self.locked_tokens -= len(step.ids)

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
            del parent.children[int(leaf.ids[0])]
            gone += len(leaf.ids)
            if not parent.children and parent.locks == 0 and parent is not self.root:
                heapq.heappush(heap, (parent.used_s, parent.number, parent))
        self.evictable_tokens -= gone
        self.evicted_tokens += gone
        return gone

    def flush(self) -> None:
        """Forget everything; only an engine without running requests may."""
        self.root = Node(None, _EMPTY, 0.0, 0)
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

    def _node(self, parent: Node, ids: Ids, used_s: float) -> Node:
        self._numbers += 1
        return Node(parent, ids, used_s, self._numbers)

    def _split(self, child: Node, at: int) -> Node:
        """Cut an edge in two; the upper part inherits locks and age. Counts do not change."""
        parent = child.parent
        assert parent is not None
        upper = self._node(parent, child.ids[:at], child.used_s)
        upper.locks = child.locks
        parent.children[int(upper.ids[0])] = upper
        child.ids = child.ids[at:]
        child.parent = upper
        upper.children[int(child.ids[0])] = child
        return upper


def _path(node: Node) -> Iterator[Node]:
    """From the node up to, not including, the root."""
    at: Node | None = node
    while at is not None and at.parent is not None:
        yield at
        at = at.parent


def _common(left: Ids, right: Ids) -> int:
    """Length of the common prefix of two arrays."""
    size = min(len(left), len(right))
    if size and left[size - 1] == right[size - 1] and np.array_equal(left[:size], right[:size]):
        return size
    differs = left[:size] != right[:size]
    return int(differs.argmax()) if differs.any() else size
