"""What is still known of a context after it left the GPU, and what does it cost to bring it back?

HiCache as SGLang has it: a host tier of `ratio` times the GPU's KV room, written through (at every
insert) or back (at eviction), loaded over PCIe beside the prefill; below it a storage that engines
of one model and degree share, fetched before a request is queued. Keys carry the degree, so another
degree misses. Page size 1 and no write delay: a page of 64 would round hits down.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Protocol

from heddle.controller.emulator.cache import Ids, PrefixCache
from heddle.controller.emulator.errors import EngineError
from heddle.controller.emulator.request import HostConfig
from heddle.controller.emulator.span import SpanCache
from heddle.controller.emulator.tree import Node

Cache = PrefixCache | SpanCache
LOAD_LEAST_TOKENS: Final = 10
"""Fewer are computed again (load_back_threshold)."""
PAGE_TOKENS: Final = 64
"""Of a storage between processes."""


class Storage(Protocol):
    """What several engines write and find."""

    def put(self, context: Any, size: int, now_s: float) -> None:
        """Keep its first `size` tokens."""
        ...

    def held(self, context: Any, size: int, now_s: float) -> int:
        """How many of its first `size` tokens are there."""
        ...


class TreeStorage:
    """Between engines of one process; it forgets nothing."""

    def __init__(self, tree: Cache) -> None:
        self._tree: Any = tree

    def put(self, context: Any, size: int, now_s: float) -> None:
        """Keep its first `size` tokens."""
        self._tree.insert(context, size, now_s)

    def held(self, context: Any, size: int, now_s: float) -> int:
        """How many of its first `size` tokens are there."""
        return self._tree.match(context, size, now_s)[0]


class FolderStorage:
    """Between processes: an empty file for each page of token ids, as the `file` backend names."""

    def __init__(self, folder: Path, model: str, degree: int) -> None:
        self._folder = folder
        self._end = f"_{model.replace('/', '-')}_{degree}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            writes = os.access(folder, os.W_OK | os.X_OK)
        except OSError:
            writes = False
        if not writes:
            sentence = f"the storage {folder} is no folder that this process can write in"
            raise EngineError(sentence)

    def put(self, context: Ids, size: int, now_s: float) -> None:
        """Keep its whole pages."""
        _ = now_s
        for name in self._names(context, size):
            (self._folder / name).touch()

    def held(self, context: Ids, size: int, now_s: float) -> int:
        """How many tokens of whole pages are there."""
        _ = now_s
        pages = 0
        for name in self._names(context, size):
            if not (self._folder / name).exists():
                break
            pages += 1
        return pages * PAGE_TOKENS

    def _names(self, context: Ids, size: int) -> list[str]:
        digest, names = blake2b(digest_size=16), list[str]()
        for end in range(PAGE_TOKENS, size + 1, PAGE_TOKENS):
            digest.update(context[end - PAGE_TOKENS : end].tobytes())
            names.append(digest.hexdigest() + self._end)
        return names


class HostTier:
    """KV on the host of one engine, and what it passes on to a storage."""

    def __init__(self, cache: Cache, tree: Cache, config: HostConfig, capacity: int) -> None:
        self.through = config.write == "through"
        self.storage: Storage | None = None
        self.capacity = int(config.ratio * capacity)
        self._tree: Any = tree
        if not self.through:
            cache.dropping = self._written_back

    @property
    def used_tokens(self) -> int:
        """Of its room."""
        return self._tree.held_tokens

    def write(self, context: Any, size: int, now_s: float) -> None:
        """Keep its first `size` tokens; the least recently used make room."""
        self._tree.insert(context, size, now_s)
        over = self._tree.held_tokens - self.capacity
        if over > 0:
            self._tree.evict(over)
        if self.storage is not None:
            self.storage.put(context, size, now_s)

    def held(self, context: Any, size: int, now_s: float) -> int:
        """How many of its first `size` tokens are there."""
        return self._tree.match(context, size, now_s)[0]

    def flush(self) -> None:
        """Forget everything; the storage does not."""
        self._tree.flush()

    def _written_back(self, cache: Any, leaf: Node) -> None:
        context, size = cache.context_of(leaf)
        self.write(context, size, leaf.used_s)
