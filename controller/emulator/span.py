"""How does a prefix cache account for contexts whose tokens nobody needs?

In virtual time a context is a shared prompt and a trajectory's own continuation, by name and
length. The tree is the same as over token ids and gives the same counts (tested); a touch costs the
new part alone, since each continuation remembers where it ended.
"""

from __future__ import annotations

from heddle.controller.emulator.tree import Node, Tree


class Span:
    """The first `size` tokens of prompt `prompt` (so many tokens) followed by those of `branch`.

    Two contexts share a token where they have the same position and, there, the same name.
    """

    __slots__ = ("branch", "prompt", "prompt_tokens", "size")

    def __init__(self, prompt: str, prompt_tokens: int, branch: str, size: int) -> None:
        self.prompt = prompt
        self.prompt_tokens = prompt_tokens
        self.branch = branch
        self.size = size

    def __len__(self) -> int:
        return self.size

    def to(self, size: int) -> Span:
        """The same context, that long."""
        return Span(self.prompt, self.prompt_tokens, self.branch, size)

    def shared(self, other: Span) -> int:
        """How many leading tokens two contexts have in common."""
        if self.branch == other.branch:
            return min(self.size, other.size)
        if self.prompt == other.prompt:
            return min(self.prompt_tokens, self.size, other.size)
        return 0


class SpanCache(Tree[Span]):
    """Prefixes of spans."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: dict[str, Node] = {}
        """Branch -> the deepest edge on its path that was last seen."""

    def match(self, context: Span, size: int, now_s: float) -> tuple[int, Node]:
        """How many of its first `size` tokens are held, and where they end; touches the end."""
        branch, prompt_tokens = context.branch, context.prompt_tokens
        node = self._ends.get(branch) or self.root
        end = node.end
        while end > size or not node.alive:
            node = node.parent or self.root
            end = node.end
        while end < size:
            child = node.children.get(context.prompt if end < prompt_tokens else branch)
            if child is None:
                break
            shared = min(context.shared(child.what), size)
            if shared < child.end:
                lower = child.what
                key = lower.prompt if shared < lower.prompt_tokens else lower.branch
                node = self._cut(child, shared, lower, key)
                break
            node = child
            end = node.end
        node.used_s = now_s
        self._ends[branch] = node
        return node.end, node

    def _put(self, context: Span, size: int, now_s: float) -> tuple[int, Node]:
        held, node = self.match(context, size, now_s)
        if held == size:
            return held, node
        branch = context.branch
        key = context.prompt if held < context.prompt_tokens else branch
        leaf = self._leaf(node, key, context, size, now_s)
        self._ends[branch] = leaf
        return held, leaf

    def context_of(self, leaf: Node) -> tuple[Span, int]:
        """The span that was put there last."""
        return leaf.what, leaf.end

    def flush(self) -> None:
        super().flush()
        self._ends.clear()
