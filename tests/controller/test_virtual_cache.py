"""Does an engine that only names its contexts count as one that holds every token id?

The same closed loop of trajectories on both: arrivals, shared prompts, tools, resets, chunks, an
evicting cache, retractions. Times, hits and retractions must be equal, to the last bit.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.controller.emulator.engine import Engine
from heddle.controller.emulator.request import EngineConfig, Request
from heddle.controller.emulator.span import Span, SpanCache
from heddle.controller.emulator.truth import TruthParams

QUIET = TruthParams(noise_block=16)
steps = st.lists(
    st.tuples(
        st.integers(1, 150), st.integers(1, 120), st.floats(0.0, 3.0), st.booleans()
    ),
    min_size=1, max_size=4,
)  # fmt: skip
fleets = st.lists(
    st.tuples(st.integers(0, 2), st.floats(0.0, 1.0), st.integers(0, 2), steps),
    min_size=1, max_size=9,
)  # fmt: skip


def drawn(count, *key):
    rng = np.random.default_rng([7, *key])
    return rng.integers(150_000, 2**30, count).astype(np.int32)


class Ids:
    """Contexts as token ids."""

    spans = False

    def start(self, number, group):
        return drawn(50 + 60 * group, 0, group)

    def grow(self, context, observed, number, step, done):
        output = done.output_ids if done is not None else drawn(0, 0)
        return np.concatenate([context, output, drawn(observed, 1, number, step)])

    def reset(self, context, number, step, group):
        return self.start(number, group)


class Names:
    """Contexts by name."""

    spans = True

    def start(self, number, group):
        return Span(f"g{group}", 50 + 60 * group, f"t{number}/0", 50 + 60 * group)

    def grow(self, context, observed, number, step, done):
        output = done.output_tokens if done is not None else 0
        return context.to(context.size + output + observed)

    def reset(self, context, number, step, group):
        return Span(
            context.prompt, context.prompt_tokens, f"t{number}/{step}", context.prompt_tokens
        )


def play(kind, made, config):
    engine = Engine(config, spans=kind.spans)
    contexts = [kind.start(i, group) for i, (group, _, _, _) in enumerate(made)]
    coming = [(at + i * 1e-7, i, 0) for i, (_, at, _, _) in enumerate(made)]
    told = []
    while True:
        coming.sort()
        due_s = engine.next_event_s()
        if not coming and due_s == float("inf"):
            return told, engine
        if coming and coming[0][0] <= due_s:
            at, number, step = coming.pop(0)
            _, _, priority, plan = made[number]
            contexts[number] = kind.grow(contexts[number], plan[step][0], number, step, None)
            request = Request(
                rid=f"{number}-{step}", ids=contexts[number], max_new_tokens=plan[step][1],
                priority=priority, salt=str(number),
            )  # fmt: skip
            engine.submit(request, at)
            continue
        for done in engine.advance(due_s):
            number, step = map(int, done.rid.split("-"))
            group, _, _, plan = made[number]
            told.append((done.rid, done.at_s, done.cached_tokens, done.queue_s, done.retractions))
            context = kind.grow(contexts[number], 0, number, step, done)
            if step + 1 < len(plan):
                if plan[step + 1][3]:
                    context = kind.reset(context, number, step + 1, group)
                coming.append((done.at_s + plan[step][2], number, step + 1))
            contexts[number] = context


@settings(max_examples=60, deadline=None)
@given(fleets, st.sampled_from([750, 1300, 5000]), st.sampled_from([None, 0]))
def test_naming_contexts_changes_no_time_no_hit_and_no_retraction(made, kv_tokens, threshold):
    config = EngineConfig(
        kv_tokens=kv_tokens, context_tokens=2000, chunk_tokens=128, max_running=4, truth=QUIET,
        preemption_threshold=threshold,
    )  # fmt: skip
    most = 2 if kv_tokens == 750 else 4
    made = [(group, at, priority, plan[:most]) for group, at, priority, plan in made]
    by_ids, one = play(Ids(), made, config)
    by_name, other = play(Names(), made, config)
    assert by_name == by_ids
    assert other.scheduler.cache.evicted_tokens == one.scheduler.cache.evicted_tokens
    assert other.scheduler.cache.held_tokens == one.scheduler.cache.held_tokens
    assert other.scheduler.retracted == one.scheduler.retracted


def test_a_forgotten_tail_is_found_again_from_what_is_left_of_it():
    cache = SpanCache()
    span = Span("p", 10, "a", 40)
    cache.insert(span, 10, 1.0)
    cache.insert(span, 25, 2.0)
    cache.insert(span, 40, 3.0)
    assert cache.evict(1) == 15
    assert cache.match(span, 40, 4.0)[0] == 25
    assert cache.match(Span("p", 10, "b", 30), 30, 5.0)[0] == 10
