"""Are an emulated engine's stages the time it says it took, once more after each retraction?"""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from span_sink import attributes, sink

from heddle.controller.emulator.engine import Engine
from heddle.controller.emulator.request import EngineConfig, Finished, Request
from heddle.controller.emulator.span import Span
from heddle.controller.emulator.tracing import EngineSpans, stages
from heddle.controller.emulator.truth import TruthParams

QUIET = TruthParams(noise_sigma=0.0)


def played(requests: int, tokens: int, **config) -> list[Finished]:
    engine = Engine(EngineConfig(truth=QUIET, **config), spans=True)
    for number in range(requests):
        span = Span(f"p{number}", 100, f"t{number}", 100)
        engine.submit(Request(rid=f"r-{number}", ids=span, max_new_tokens=tokens), 1.0)
    done: list[Finished] = []
    while not engine.is_idle:
        done += engine.advance(engine.next_event_s())
    return done


def test_stages_follow_each_other_without_a_gap_from_arrival_to_end():
    for done in played(8, 9000, kv_tokens=40_000):
        made = list(stages(done))
        assert made[0][1] == done.arrival_s
        assert made[-1][2] == done.at_s
        assert all(one[2] == other[1] for one, other in pairwise(made))


def test_a_retracted_request_waits_and_prefills_again_and_its_waiting_is_its_queue_time():
    ended = played(8, 9000, kv_tokens=40_000)
    assert sum(done.retractions for done in ended) > 0
    for done in ended:
        made = list(stages(done))
        assert sum(name == "prefill_forward" for name, _, _ in made) == done.retractions + 1
        waited_s = sum(end - start for name, start, end in made if name == "prefill_waiting")
        assert waited_s == pytest.approx(done.queue_s)


def test_the_level_and_an_unsampled_parent_turn_spans_off_and_an_underscore_cuts_the_rid():
    (done,) = played(1, 5)
    with sink() as made:
        spans = EngineSpans.to(made.url.removesuffix("/v1/traces"), EngineConfig(), time.time_ns())
        for level, traceparent, rid in (
            (1, f"00-{'a' * 32}-{'1' * 16}-00", "unsampled"),
            (0, f"00-{'b' * 32}-{'1' * 16}-01", "level0"),
            (3, f"00-{'c' * 32}-{'1' * 16}-01", "cut_off-1"),
            (3, None, "alone-1"),
        ):
            spans.level = level
            ended = done._replace(rid=rid)
            spans.begun(Request(rid=rid, ids=Span("p", 9, "t", 9)), traceparent)
            spans.ended(ended)
        spans.close()
        found = {
            s.trace_id.hex(): s
            for t in ("a", "b", "c")
            for s in made.of(t * 32, "Req", within_s=0.0)
        }
        assert list(found) == ["c" * 32]
        (root,) = [s for s in made.of("c" * 32, "Req") if s.name.startswith(" Req")]
        assert attributes(root)["rid"] == "off-1"
        assert attributes(root)["gen_ai.request.id"] == "cut_off-1"
        (alone,) = [s for t, those in made._spans.items() if t[:16] == "0" * 16 for s in those
                    if s.name.startswith(" Req")]  # fmt: skip
        assert not alone.parent_span_id
