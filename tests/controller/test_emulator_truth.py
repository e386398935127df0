"""Does the engine's own truth reproduce the sweeps, and add what it says it adds?"""

from __future__ import annotations

import csv
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.controller.emulator.engine import Engine
from heddle.controller.emulator.errors import EngineError
from heddle.controller.emulator.passes import DecodePass
from heddle.controller.emulator.request import EngineConfig
from heddle.controller.emulator.rollout import run_rollout
from heddle.controller.emulator.truth import Piece, TruthParams, load_truth
from heddle.controller.emulator.workload import generate

BARE = TruthParams(
    graph_steps=False, cpu_iteration_s=0, cpu_sequence_s=0, prefill_cpu_s=0, noise_sigma=0
)


def sweep(kind: str):
    text = (files("heddle.models.profiles") / f"{kind}_h100_sxm.csv").read_text("utf-8")
    return [row for row in csv.DictReader(text.splitlines()) if row["model"] == "Qwen3-14B"]


def test_without_its_effects_the_truth_is_the_decode_sweep_itself():
    for row in sweep("decode"):
        truth = load_truth("h100_sxm", "Qwen3-14B", int(row["tp"]), BARE)
        batch = int(row["batch"])
        (piece,) = truth.pieces(batch, batch * (int(row["ctx_start"]) + 32), 0, 1)
        assert piece.first_s == pytest.approx(float(row["tpot_ms"]) / 1e3)


def test_without_its_effects_the_truth_is_the_prefill_sweep_itself():
    # The sweep reads 64 tokens after 8k faster than after none (its known bias); we do not.
    for row in sweep("prefill"):
        truth = load_truth("h100_sxm", "Qwen3-14B", int(row["tp"]), BARE)
        took_s = truth.prefill_s([(int(row["new_tokens"]), int(row["prefix_tokens"]))], 0)
        assert took_s == pytest.approx(float(row["ttft_ms"]) / 1e3, rel=0.09)


def test_a_batch_is_priced_at_the_next_captured_size():
    truth = load_truth("h100_sxm", "Qwen3-14B", 1, TruthParams(noise_sigma=0, cpu_sequence_s=0))
    bare = load_truth("h100_sxm", "Qwen3-14B", 1, BARE)

    def over(batch):
        at = (batch, batch * 1000, 0, 1)
        return truth.pieces(*at)[0].first_s - bare.pieces(*at)[0].first_s

    assert over(32) == pytest.approx(0.0003)
    assert over(33) > over(39) > over(40) == pytest.approx(0.0003)


def test_prefilling_two_prompts_together_costs_less_than_apart_and_more_than_one():
    truth = load_truth("h100_sxm", "Qwen3-14B", 1, BARE)
    one = truth.prefill_s([(1000, 0)], 0)
    assert one < truth.prefill_s([(1000, 0), (1000, 0)], 0) < 2 * one
    assert truth.prefill_s([(100, 30_000)], 0) > truth.prefill_s([(100, 0)], 0)


def test_the_hash_changes_with_any_parameter():
    hashes = {
        load_truth("h100_sxm", model, degree, TruthParams(seed=seed)).hash
        for model in ("Qwen3-8B", "Qwen3-14B")
        for degree in (1, 2)
        for seed in (0, 1)
    }
    assert len(hashes) == 8


def test_unknown_names_are_answered_with_the_known_ones():
    for arguments, known in (
        (("tpu", "Qwen3-8B", 1), "h100_sxm, h200_sxm"),
        (("h100_sxm", "Llama", 1), "Qwen3-14B, Qwen3-32B, Qwen3-8B"),
        (("h100_sxm", "Qwen3-8B", 3), r"\[1, 2, 4, 8\]"),
    ):
        with pytest.raises(EngineError, match=known):
            load_truth(*arguments)


pieces = st.builds(
    Piece,
    iterations=st.integers(1, 40),
    first_s=st.floats(0.001, 0.1),
    step_s=st.floats(0.0, 1e-4),
)


@given(st.lists(pieces, min_size=1, max_size=4), st.floats(0.0, 1.0))
def test_the_closed_form_of_a_pass_agrees_with_adding_up_its_iterations(made, share):
    decode = DecodePass(5.0, 1, made)
    ends = [5.0]
    for piece in made:
        for i in range(piece.iterations):
            ends.append(ends[-1] + piece.first_s + i * piece.step_s)
    assert [decode.time_s(i) for i in range(len(ends))] == pytest.approx(ends)
    now_s = 5.0 + share * (decode.end_s - 5.0)
    count = decode.ended_by(now_s)
    assert decode.time_s(count) <= now_s
    assert count == decode.iterations or now_s < decode.time_s(count + 1)


def test_the_truth_of_engines_is_frozen():
    assert load_truth("h100_sxm", "Qwen3-14B", 1).hash == "b505d4f88347"


def test_what_the_hash_does_not_hold_is_frozen_too():
    """SGLang's constants are code, KV room and weights a document: no result says their hash."""
    tight = EngineConfig(kv_tokens=140_000)
    played = run_rollout(
        generate("coding", groups=4), preset="verl", gpus=2, layout=(1, 1), seed=3, engine=tight
    )
    counted = [(t.retractions, t.cached_tokens) for t in played.trajectories]
    assert [sum(column) for column in zip(*counted, strict=True)] == [8, 17_054_849]
    assert (len(played.steps), played.events) == (2082, 9393)
    assert played.makespan_s == pytest.approx(1987.278870525396, rel=1e-9)

    engine, tags = Engine(EngineConfig()), {"weights", "kv_cache"}
    assert engine.scheduler.capacity == 254_881
    assert engine.load_weights("v1", 0.0) == pytest.approx(7.3841536)
    asleep = Engine(EngineConfig())
    times_s = asleep.sleep(tags, 0.0), asleep.wake(tags, 1.0)
    assert times_s == pytest.approx((0.5, 1.23841536))
