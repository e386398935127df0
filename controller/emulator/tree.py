"""What is held of a prefix tree, what is locked, and which leaf leaves next?

SGLang's page-size-1 semantics: whole unreferenced leaves leave, least recently used first; what a
running request holds is locked. Counts tokens; how two edges compare is the cache's business.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any


class Node:
    """One edge: the tokens from `start` to `end` of the sequences that pass through it."""

    __slots__ = (
        "alive", "children", "end", "key", "locks", "number", "parent", "queued", "start", "used_s",
        "what",
    )  # fmt: skip

    def __init__(
        self, parent: Node | None, key: Any, what: Any, start: int, end: int, number: int
    ) -> None:
        self.parent = parent
        self.key = key
        """Of its first token, among its siblings."""
        self.what = what
        """Its tokens, as the cache keeps them."""
        self.start = start
        self.end = end
        self.number = number
        self.children: dict[Any, Node] = {}
        self.locks = 0
        """Times it was locked itself, and children with a lock below them."""
        self.used_s = 0.0
        self.alive = True
        self.queued = False

    @property
    def tokens(self) -> int:
        return self.end - self.start


class Tree:
    """Tokens held = locked + evictable; the caller keeps held + its own <= capacity."""

    def __init__(self) -> None:
        self._numbers = 0
        self.root = Node(None, None, None, 0, 0, 0)
        self._old: list[tuple[float, int, Node]] = []
        """Leaves that may go, by an age that may since have fallen; each at most once."""
        self.locked_tokens = 0
        self.evictable_tokens = 0
        self.evicted_tokens = 0

    @property
    def held_tokens(self) -> int:
        return self.locked_tokens + self.evictable_tokens

    def lock(self, node: Node) -> None:
        """Keep the path to that node until it is unlocked as often."""
        while node.parent is not None:
            node.locks += 1
            if node.locks > 1:
                return
            tokens = node.end - node.start
            self.evictable_tokens -= tokens
            self.locked_tokens += tokens
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Take one lock back."""
        while node.parent is not None:
            node.locks -= 1
            if node.locks > 0:
                return
            tokens = node.end - node.start
            self.evictable_tokens += tokens
            self.locked_tokens -= tokens
            if not node.children and not node.queued:
                self._queue(node)
            node = node.parent

    def evict(self, tokens: int) -> int:
        """Drop unlocked leaves, oldest first, until that many tokens went; how many did."""
        gone = 0
        while gone < tokens and self._old:
            used_s, _, leaf = heapq.heappop(self._old)
            leaf.queued = False
            if not leaf.alive or leaf.locks or leaf.children:
                continue
            if leaf.used_s > used_s:
                self._queue(leaf)
                continue
            gone += leaf.end - leaf.start
            self._drop(leaf)
        self.evictable_tokens -= gone
        self.evicted_tokens += gone
        return gone

    def flush(self) -> None:
        """Forget everything; only an engine without running requests may."""
        for node in self.nodes():
            node.alive = False
        self.root = Node(None, None, None, 0, 0, 0)
        self._old.clear()
        self.locked_tokens = self.evictable_tokens = 0

    def nodes(self) -> Iterator[Node]:
        """Every edge, parents first."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _drop(self, leaf: Node) -> None:
        leaf.alive = False
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.key]
        # Touching a path may touch its end alone: its age is its parent's once it is gone.
        parent.used_s = max(parent.used_s, leaf.used_s)
        if not parent.children and not parent.locks and parent.parent and not parent.queued:
            self._queue(parent)

    def _queue(self, leaf: Node) -> None:
        leaf.queued = True
        heapq.heappush(self._old, (leaf.used_s, leaf.number, leaf))

    def _leaf(self, parent: Node, key: Any, what: Any, end: int, now_s: float) -> Node:
        """A new edge at the end of `parent`, unlocked."""
        self._numbers += 1
        leaf = Node(parent, key, what, parent.end, end, self._numbers)
        leaf.used_s = now_s
        parent.children[key] = leaf
        self.evictable_tokens += end - leaf.start
        self._queue(leaf)
        return leaf

    def _cut(self, child: Node, at: int, upper_what: Any, lower_key: Any) -> Node:
        """Cut an edge in two; the upper part inherits locks and age. Counts do not change."""
        parent = child.parent
        assert parent is not None
        self._numbers += 1
        upper = Node(parent, child.key, upper_what, child.start, at, self._numbers)
        upper.used_s = child.used_s
        upper.locks = 1 if child.locks else 0
        parent.children[upper.key] = upper
        child.key, child.start, child.parent = lower_key, at, upper
        upper.children[lower_key] = child
        return upper
