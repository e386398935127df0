"""What is held of a prefix tree, what is locked, and which leaf leaves next?

SGLang's page-size-1 semantics: whole unreferenced leaves leave, least recently used first; what a
running request holds is locked. Counts tokens; how two edges compare is the cache's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

Context = TypeVar("Context")


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


class Tree(ABC, Generic[Context]):
    """Tokens held = locked + evictable; the caller keeps held + its own <= capacity."""

    def __init__(self) -> None:
        self._numbers = 0
        self.root = Node(None, None, None, 0, 0, 0)
        self._old: list[tuple[float, int, Node]] = []
        """Leaves that may go, by an age that may since have fallen; each at most once."""
        self.locked_tokens = 0
        self.evictable_tokens = 0
        self.evicted_tokens = 0
        self.dropping: Callable[[Any, Node], None] | None = None
        """Told of each leaf before it leaves."""

    @property
    def held_tokens(self) -> int:
        return self.locked_tokens + self.evictable_tokens

    @abstractmethod
    def match(self, context: Context, size: int, now_s: float) -> tuple[int, Node]:
        """How many of its first `size` tokens are held, and where they end; touches that."""

    @abstractmethod
    def _put(self, context: Context, size: int, now_s: float) -> tuple[int, Node]:
        """Put in its first `size` tokens: how many were in, where they end; queue a new leaf."""

    @abstractmethod
    def context_of(self, leaf: Node) -> tuple[Context, int]:
        """A context that passes through that edge, and where the edge ends in it."""

    def insert(self, context: Context, size: int, now_s: float) -> tuple[int, Node]:
        """Hold its first `size` tokens; returns how many were held already and where they end."""
        held, node = self._put(context, size, now_s)
        self._may_go(node)
        return held, node

    def keep(self, old: Node | None, context: Context, size: int, now_s: float) -> Node:
        """Hold its first `size` tokens and lock them instead of `old`, an earlier end of it."""
        _, new = self._put(context, size, now_s)
        if new.parent is old and old is not None and not new.locks:
            # A lock through its new child is all that `old` gains, and its own is what it loses.
            new.locks = 1
            tokens = new.end - new.start
            self.evictable_tokens -= tokens
            self.locked_tokens += tokens
        elif new is not old:
            self.lock(new)
            if old is not None:
                self.unlock(old)
        return new

    def leave(self, old: Node | None, context: Context, size: int, now_s: float) -> None:
        """Hold its first `size` tokens, and take one lock back from `old`, an earlier end of it."""
        _, new = self._put(context, size, now_s)
        if old is not None:
            self.unlock(old)
        self._may_go(new)

    def lock(self, node: Node) -> None:
        """Keep the path to that node until it is unlocked as often."""
        end = node.end
        while (parent := node.parent) is not None:
            node.locks = locks = node.locks + 1
            if locks > 1:
                break
            node = parent
        # Edges of a path follow each other: what is new ends where the locked part ends.
        tokens = end - node.end
        self.evictable_tokens -= tokens
        self.locked_tokens += tokens

    def unlock(self, node: Node) -> None:
        """Take one lock back."""
        leaf = node
        while (parent := node.parent) is not None:
            node.locks = locks = node.locks - 1
            if locks > 0:
                break
            node = parent
        tokens = leaf.end - node.end
        self.evictable_tokens += tokens
        self.locked_tokens -= tokens
        # Only the path's own end can be a leaf.
        self._may_go(leaf)

    def evict(self, tokens: int) -> int:
        """Drop unlocked leaves, oldest first, until that many tokens went; how many did."""
        gone, old, dropping = 0, self._old, self.dropping
        while gone < tokens and old:
            used_s, _, leaf = heappop(old)
            leaf.queued = False
            if leaf.locks or leaf.children or not leaf.alive:
                continue
            if leaf.used_s > used_s:
                self._queue(leaf)
                continue
            gone += leaf.end - leaf.start
            if dropping is not None:
                dropping(self, leaf)
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
        if leaf.used_s > parent.used_s:
            parent.used_s = leaf.used_s
        if not parent.children and not parent.locks and parent.parent and not parent.queued:
            self._queue(parent)

    def _may_go(self, node: Node) -> None:
        if not (node.locks or node.children or node.queued) and node.parent is not None:
            self._queue(node)

    def _queue(self, leaf: Node) -> None:
        leaf.queued = True
        heappush(self._old, (leaf.used_s, leaf.number, leaf))

    def _leaf(self, parent: Node, key: Any, what: Any, end: int, now_s: float) -> Node:
        """A new edge at the end of `parent`, unlocked; it is not queued yet."""
        self._numbers = number = self._numbers + 1
        start = parent.end
        leaf = Node(parent, key, what, start, end, number)
        leaf.used_s = now_s
        parent.children[key] = leaf
        self.evictable_tokens += end - start
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
