"""Does the radix cache find every prefix, evict the oldest leaf and never lose count?"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heddle.controller.emulator.cache import PrefixCache


class Sized:
    """A cache asked for whole words."""

    def __init__(self):
        self.cache = PrefixCache()

    def __getattr__(self, name):
        return getattr(self.cache, name)

    def insert(self, word, now_s):
        return self.cache.insert(word, len(word), now_s)

    def match(self, word, now_s):
        return self.cache.match(word, len(word), now_s)


def ids(*tokens: int):
    return np.array(tokens, dtype=np.int32)


words = st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple)


@given(st.lists(words, max_size=15), words)
def test_a_match_is_the_longest_prefix_anything_inserted_shares(inserted, asked):
    cache = Sized()
    for at, word in enumerate(inserted):
        cache.insert(ids(*word), float(at))

    def shared(word):
        return next((i for i, (a, b) in enumerate(zip(word, asked, strict=False)) if a != b),
                    min(len(word), len(asked)))  # fmt: skip

    assert cache.match(ids(*asked), 99.0)[0] == max(map(shared, inserted), default=0)
    prefixes = {word[:i] for word in inserted for i in range(1, len(word) + 1)}
    assert cache.held_tokens == len(prefixes)


@given(
    st.lists(st.tuples(words, st.sampled_from(["insert", "lock", "unlock", "evict"])), max_size=40)
)
def test_locked_plus_evictable_is_what_the_edges_hold_whatever_happens(deeds):
    cache, locks = Sized(), []
    for at, (word, deed) in enumerate(deeds):
        _, node = cache.insert(ids(*word), float(at))
        if deed == "lock":
            cache.lock(node)
            locks.append(node)
        elif deed == "unlock" and locks:
            cache.unlock(locks.pop())
        elif deed == "evict":
            before = cache.evictable_tokens
            gone = cache.evict(len(word))
            assert min(len(word), before) <= gone <= before
        edges = list(cache.nodes())
        assert cache.held_tokens == sum(edge.tokens for edge in edges)
        assert cache.locked_tokens == sum(edge.tokens for edge in edges if edge.locks)
        for node in locks:
            assert node.locks > 0


def test_the_least_recently_used_leaf_goes_first_and_touching_saves_it():
    cache = Sized()
    cache.insert(ids(1, 2, 3), 1.0)
    cache.insert(ids(4, 5, 6), 2.0)
    cache.match(ids(1, 2, 3), 3.0)
    assert cache.evict(1) == 3
    assert cache.match(ids(1, 2, 3), 4.0)[0] == 3
    assert cache.match(ids(4, 5, 6), 4.0)[0] == 0


def test_a_leaf_goes_before_the_prefix_it_grew_from():
    cache = Sized()
    cache.insert(ids(1, 2), 1.0)
    cache.insert(ids(1, 2, 3, 4), 2.0)
    assert cache.evict(1) == 2
    assert cache.match(ids(1, 2, 3, 4), 3.0)[0] == 2


def test_what_is_locked_stays_however_much_is_asked_for():
    cache = Sized()
    _, node = cache.insert(ids(1, 2, 3), 1.0)
    cache.lock(node)
    assert cache.evict(100) == 0
    assert cache.held_tokens == cache.locked_tokens == 3
