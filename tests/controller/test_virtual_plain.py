"""Does a rollout come out the same whichever library made its numbers?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heddle.controller.core.types import CoreError
from heddle.controller.emulator.engine import Engine
from heddle.controller.emulator.request import EngineConfig, HostConfig, Request
from heddle.controller.emulator.rollout import Death, Setup, Sync, run_rollout
from heddle.controller.emulator.truth import TruthParams
from heddle.controller.emulator.workload import StepSpec, WorkloadError, generate, workload_hash

OWN = generate("demo", groups=2, samples=4, seed=2)


def of_numpy(step):
    out, tool_s = np.int32(step.output_tokens), np.float64(step.tool_s)
    before = np.int64(step.observation_tokens)
    return replace(step, observation_tokens=before, output_tokens=out, tool_s=tool_s)


def setup(whole, real, row):
    return Setup(
        gpus=whole(2),
        layout=row([1, 1]),
        seed=whole(3),
        engine=EngineConfig(
            kv_tokens=whole(60_000),
            max_running=whole(4),
            chunk_tokens=whole(512),
            preemption_threshold=whole(0),
            host=HostConfig(ratio=real(1.5)),
            truth=TruthParams(noise_block=whole(16), prefill_cpu_s=real(0.002)),
        ),
        slow_s={"w0": real(0.001)},
        arrivals_s=row([0.25 * i for i in range(len(OWN))]),
        deaths=[Death(worker_id="w1", at_s=real(20.0), back_s=real(30.0))],
        syncs=[Sync(at_s=real(40.0), version="v1")],
        cutoff_s=real(500.0),
    )


def test_numbers_of_numpy_make_the_rollout_that_the_same_ones_of_python_make():
    theirs = [replace(t, steps=tuple(map(of_numpy, t.steps))) for t in OWN]
    assert workload_hash(theirs) == workload_hash(OWN)
    one = run_rollout(OWN, setup=setup(int, float, tuple))
    other = run_rollout(theirs, setup=setup(np.int64, np.float64, np.array))
    assert one.syncs
    assert one.deaths
    assert other.digest() == one.digest()
    assert other.truth_hash == one.truth_hash
    assert type(other.makespan_s) is float


def test_a_request_may_ask_for_numpys_count_of_tokens():
    engine = Engine(EngineConfig())
    ids = np.arange(50, dtype=np.int32)
    request = Request(rid="r", ids=ids, max_new_tokens=np.int64(7), priority=np.int8(2))
    engine.submit(request, 0.0)
    (ended,) = engine.advance(10.0)
    assert type(ended.output_tokens) is int
    assert ended.output_tokens == 7


@pytest.mark.parametrize("tokens", [(100.0, 5), (100, 5.5), (None, 5)])
def test_a_count_of_tokens_that_is_no_whole_number_is_refused_by_its_name(tokens):
    with pytest.raises(WorkloadError, match="_tokens of a step is a whole number, not "):
        StepSpec(*tokens, None, 0.0)


@pytest.mark.parametrize("arrivals_s", [[], [0.0], [0.0] * 9])
def test_arrivals_are_one_for_each_trajectory(arrivals_s):
    with pytest.raises(CoreError, match="arrivals are not those of 8 trajectories"):
        run_rollout(OWN, arrivals_s=arrivals_s)
