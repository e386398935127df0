"""Does the port say of an engine what it lacks, and only that?"""

from __future__ import annotations

from typing import Any

import pytest

from heddle.controller.errors import EngineError
from heddle.controller.fleet.sglang import SglangEngine, capabilities_of, open_session

FULL = {
    "version": "0.5.23",
    "served_model_name": "m",
    "tp_size": 2,
    "max_total_num_tokens": 900,
    "max_running_requests": None,
    "enable_priority_scheduling": True,
    "disable_priority_preemption": False,
    "priority_scheduling_preemption_threshold": 10,
    "default_priority_value": 0,
    "enable_metrics": True,
    "enable_trace": True,
    "enable_hierarchical_cache": True,
    "hicache_storage_backend": "file",
    "enable_memory_saver": True,
    "internal_states": [
        {"effective_max_running_requests_per_dp": 48, "heddle_priority_port": 8700}
    ],
}


def test_an_engine_with_everything_misses_nothing() -> None:
    can = capabilities_of(FULL)
    assert can.missing == ()
    assert (can.model, can.degree, can.kv_tokens, can.max_running) == ("m", 2, 900, 48)
    assert (can.margin, can.storage, can.plugin) == (10, "file", 8700)


@pytest.mark.parametrize(
    ("without", "flag"),
    [
        ({"enable_priority_scheduling": False}, "--enable-priority-scheduling"),
        ({"default_priority_value": None}, "--default-priority-value 0"),
        ({"enable_metrics": False}, "--enable-metrics"),
        ({"enable_trace": False}, "--enable-trace"),
        ({"enable_hierarchical_cache": False}, "--enable-hierarchical-cache"),
        ({"hicache_storage_backend": None}, "--hicache-storage-backend"),
        ({"enable_memory_saver": False}, "--enable-memory-saver"),
        ({"internal_states": [{}]}, "HEDDLE_PRIORITY_PORT"),
        ({"version": "0.5.99"}, "0.5.99"),
    ],
)
def test_each_missing_thing_is_one_sentence_with_the_flag_that_helps(
    without: dict[str, object], flag: str
) -> None:
    (sentence,) = capabilities_of({**FULL, **without}).missing
    assert flag in sentence


def test_no_margin_is_said_of_an_engine_that_never_preempts() -> None:
    assert capabilities_of({**FULL, "disable_priority_preemption": True}).margin is None
    assert capabilities_of({**FULL, "enable_priority_scheduling": False}).margin is None


def test_an_engine_that_says_nothing_can_nothing_and_never_raises() -> None:
    can = capabilities_of({})
    assert (can.degree, can.priority, can.storage) == (0, False, "")
    assert len(can.missing) == 6


@pytest.mark.parametrize(
    "said",
    [
        {"tp_size": "two"},
        {"max_total_num_tokens": [1]},
        {"max_running_requests": float("inf")},
        {"internal_states": [{"heddle_priority_port": "x"}]},
    ],
)
def test_what_is_no_sglang_is_refused_with_the_key_that_shows_it(said: dict[str, Any]) -> None:
    key = next(iter(said if "internal_states" not in said else said["internal_states"][0]))
    refused = capabilities_of(said).refused
    assert refused.startswith(f"its /server_info says {key}: ")
    assert refused.endswith(", which is no number")


@pytest.mark.parametrize("states", [[], None, "none", [None], {"a": 1}])
def test_states_that_are_none_are_left_out(states: Any) -> None:
    assert capabilities_of({**FULL, "internal_states": states}).plugin == 0


async def test_an_engine_without_a_memory_saver_is_not_put_asleep_and_its_worker_says_so(
    stack: Any, auth: dict[str, str]
) -> None:
    async with stack(engines=1) as s, open_session() as session:
        with pytest.raises(EngineError, match="--enable-memory-saver"):
            await SglangEngine(s.app.up.fleet.workers["w0"].url, session).sleep()
        async with session.get(f"{s.url}/heddle/v1/workers", headers=auth) as reply:
            (worker,) = await reply.json()
    assert any("--enable-memory-saver" in sentence for sentence in worker["missing"])
