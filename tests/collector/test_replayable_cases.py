"""Do the public threads that give numbers per rank or per phase lead to the finding they deserve?

Each case is rebuilt from the numbers its thread states (the reporters' word); what it leaves open
is the simplest thing that fits them. Case numbers are those of the reference on user demand.
"""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from heddle.collector import records
from heddle.collector.accounting import account
from heddle.collector.activities import Activity
from heddle.collector.blame import blame
from heddle.collector.counters import counted
from heddle.collector.decompose import decompose
from heddle.collector.facts import gather
from heddle.collector.findings.case import Case
from heddle.collector.findings.rules import diagnose
from heddle.collector.findings.signals import signals
from heddle.collector.spare import spare

S = 10**9
Row = dict[str, Any]


def frame(query: str, rows: list[Row]) -> pl.DataFrame:
    schema = records.schema(query)
    return pl.DataFrame([{k: row.get(k) for k in schema} for row in rows], schema=schema)


def step(t: str, w: int, start_s: float, end_s: float, index: int = 0, **more: Any) -> Row:
    """One step that decodes from start to end, its first tenth of a second a prefill."""
    length = round((end_s - start_s) * S)
    return {
        "trajectory_id": t, "group_id": "g", "worker_id": f"w{w}", "degree": 1,
        "step_index": index, "state": "finished", "start_ns": round(start_s * S),
        "end_ns": round(start_s * S) + length, "prefill_ns": S // 10,
        "decode_ns": length - S // 10, "output_tokens": max(round(end_s - start_s) * 50, 1), **more,
    }  # fmt: skip


def tool(t: str, name: str, start_s: float, end_s: float) -> Row:
    return {"trajectory_id": t, "tool_name": name, "start_ns": round(start_s * S),
            "end_ns": round(end_s * S), "state": "finished"}  # fmt: skip


def case(
    gpus: int, wall_s: float, steps: list[Row], tools: list[Row] | None = None,
    sync_s: tuple[float, float] | None = None, outcomes: dict[str, str] | None = None,
    counters: list[Row] | None = None,
) -> Case:  # fmt: skip
    end_ns = round(wall_s * S)
    workers = [
        {"worker_id": f"w{w}", "degree": 1, "start_ns": 0, "end_ns": end_ns} for w in range(gpus)
    ]
    names = sorted({row["trajectory_id"] for row in (*steps, *(tools or []))})
    groups = {row["trajectory_id"]: row["group_id"] for row in steps}
    frames = {
        "steps": frame("steps", steps),
        "tool_calls": frame("tool_calls", tools or []),
        "moves": frame("moves", []),
        "workers": frame("workers", workers),
        "trajectories": frame(
            "trajectories",
            [
                {"trajectory_id": t, "group_id": groups.get(t), "outcome": (outcomes or {}).get(t)}
                for t in names
            ],
        ),
    }
    paused = [round(at * S) for at in sync_s or ()]
    fleet = [
        Activity(f"w{w}", "weight_sync", paused[0], paused[1]) for w in range(gpus if paused else 0)
    ]
    rollout = {"start_ns": 0, "end_ns": end_ns, "gpus": gpus}
    facts = gather(rollout, **frames, now_ns=end_ns, fleet=fleet)  # pyright: ignore[reportArgumentType]
    accounts = account(facts.window, gpus, facts.leases, facts.activities)
    syncs = [{"op": "heddle.weight_sync", "start_ns": paused[0], "end_ns": paused[1],
              "waited_for": None}] if paused else []  # fmt: skip
    seen = signals(
        facts,
        steps=frames["steps"],
        tool_calls=frames["tool_calls"],
        fleet=pl.DataFrame(syncs) if syncs else None,
        counted=counted(accounts, pl.DataFrame(counters)) if counters else (),
        trajectories=frames["trajectories"],
    )
    parts = decompose(facts, frames["steps"], {})
    split = blame(accounts, facts.groups)
    return Case(accounts, split, parts, False, seen, spare(accounts))


def rules(found: Case) -> list[str]:
    return [one.rule for one in diagnose(found)]


def title(found: Case, rule: str) -> str:
    return next(one.title for one in diagnose(found) if one.rule == rule)


def test_case_1_ranks_1800_s_apart_warn_of_the_collective_that_times_out():
    """verl#2629: more than 1,800 s between the fastest and the slowest DP rank."""
    ends = [1200, 1300, 1250, 3100]
    steps = [step(f"t{w}{k}", w, 0, end - k) for w, end in enumerate(ends) for k in range(8)]
    found = case(4, 3100, steps)
    assert "gather-timeout" in rules(found)
    assert "the first worker ended 1,900 s before the last one" in title(found, "gather-timeout")


def test_case_3_and_20_skewed_load_is_shown_where_hit_rates_are_equal():
    """llm-d-autoscaling#1171: 85 / 15 % to two pods."""
    steps = [step(f"a{k}", 0, 0, 100) for k in range(17)] + [step(f"b{k}", 1, 0, 18) for k in "123"]
    found = case(2, 100, steps)
    assert rules(found) == ["crowded-worker"]
    assert "worker w0 was busy 100% of the time and the other 1 18%" in title(
        found, "crowded-worker"
    )


def test_case_4_engines_idle_while_clients_wait_for_a_router():
    """prime-rl#3211: 4 replicas, KV about 1 %, requests time out after 600 s in the router."""
    steps = [
        step(f"t{w}{k}", w, at, at + 30, index, error_type="ProviderError: Request timed out")
        for w in range(4)
        for k in range(8)
        for index, at in enumerate((0, 630, 1260))
    ]
    found = case(4, 1290, steps)
    assert rules(found) == ["clients-wait"]
    assert title(found, "clients-wait").endswith("; 96 steps ended by a timeout")


def test_case_9_and_14_reward_after_rollout_is_a_wait_for_the_tool_that_scores():
    """verl#980: reward 140 s beside rollout 180 s."""
    steps = [step(f"t{w}{k}", w, 0, 180 - k) for w in range(4) for k in range(8)]
    scores = [tool(f"t{w}{k}", "reward", 180 - k, 320) for w in range(4) for k in range(8)]
    found = case(4, 320, steps, scores)
    assert rules(found) == ["tool-bound"]
    assert "44% of the time, 100% of it for 'reward'" in title(found, "tool-bound")


def test_case_10_and_vime_358_half_of_the_time_waited_for():
    """slime#1072: wait_time_ratio about 0.5; vime#358: sync 178.3 s a step, 54.6 % of it wait."""
    steps = [step(f"t{w}{k}", w, 97.4, 178.3) for w in range(8) for k in range(4)]
    found = case(8, 178.3, steps, sync_s=(0, 97.4))
    assert rules(found) == ["weight-sync"]
    assert "paused for weight sync 55%" in title(found, "weight-sync")
    steps = [step(f"t{w}{k}", w, 4.6, 104) for w in range(8) for k in range(4)]
    assert rules(case(8, 104.0, steps, sync_s=(0, 4.6))) == []


def test_case_11_two_minutes_at_0_percent_before_the_first_token_are_a_slow_start():
    """verl#3114: 2 min 10 s for 1,024 responses, at least 2 min at 0 % on 8 A100."""
    steps = [step(f"t{w}{k}", w, 120, 130) for w in range(8) for k in range(8)]
    found = case(8, 130, steps)
    assert rules(found) == ["slow-start"]
    assert "waited 92% of the time" in title(found, "slow-start")


def test_case_13_tool_calls_ten_times_as_long_as_generation_are_tool_bound():
    """verl#2873: tool_calls 10 x generate_sequences in ReTool."""
    steps: list[Row] = []
    calls: list[Row] = []
    for w in range(8):
        for k in range(4):
            for index in range(3):
                at = 33.0 * index
                steps.append(step(f"t{w}{k}", w, at, at + 3, index))
                calls.append(tool(f"t{w}{k}", "code_interpreter", at + 3, at + 33))
    found = case(8, 99, steps, calls)
    assert rules(found) == ["tool-bound"]
    assert "91% of the time, 100% of it for 'code_interpreter'" in title(found, "tool-bound")


def test_case_15_a_25_minute_sync_names_the_trajectories_it_waited_for():
    """verl#4896: param_sync from seconds to 25 min, the abort waits for the tail, 6 H200."""
    steps = [step(f"t{w}{k}", w, 0, 590) for w in range(6) for k in range(4)]
    steps += [step("tail-a", 0, 0, 2090), step("tail-b", 3, 0, 1700)]
    found = case(6, 2100, steps, sync_s=(600, 2100))
    assert rules(found)[0] == "sync-blocked"
    said = title(found, "sync-blocked")
    assert "took 1,500.0 s (71% of GPU time) and waited for 2 trajectories: tail-a, tail-b" in said


def test_case_16_thirty_samples_on_eight_gpus_one_at_a_time_are_serialised():
    """rllm#292: 1,389 s for 30 validation samples on 8 H800, one GPU busy at a time."""
    each = 1389 / 30
    found = case(8, 1389, [step(f"t{k:02d}", k % 8, each * k, each * (k + 1)) for k in range(30)])
    assert rules(found) == ["one-at-a-time"]
    assert "8 workers served, but in 100% of the busy time only one" in title(
        found, "one-at-a-time"
    )


def test_case_17_util_10_percent_at_memory_60_percent_is_explained_by_its_tools():
    """ReCall#3: 10 % utilisation while the memory is in use: search calls between short turns."""
    steps = [step(f"t{w}{k}", w, 20.0 * i, 20.0 * i + 2, i) for w in range(4) for k in range(4)
             for i in range(5)]  # fmt: skip
    calls = [tool(f"t{w}{k}", "search", 20.0 * i + 2, 20.0 * i + 20) for w in range(4)
             for k in range(4) for i in range(5)]  # fmt: skip
    assert rules(case(4, 100, steps, calls)) == ["tool-bound"]


def test_case_8_one_sequence_alone_asks_for_a_higher_degree():
    """UniRL#40: the last sequence alone takes 63 s; TP2 would halve it in principle."""
    steps = [step(f"t{w}{k}", w, 0, 30 + k) for w in range(4) for k in range(8)]
    found = case(4, 100, [*steps, step("long", 1, 37, 100)])
    assert rules(found) == ["degree-too-low"]
    assert "a worker of higher degree" in diagnose(found)[0].knob


@pytest.mark.parametrize("gap_s", [0.0, 0.01])
def test_case_21_and_22_resident_requests_are_never_called_idle(gap_s: float):
    """TraceLens#728: 26 % "idle" was an artifact of 99 % active."""
    steps = [
        step(f"t{w}{k}", w, 10.0 * i + gap_s, 10.0 * (i + 1), i)
        for w in range(2)
        for k in range(4)
        for i in range(10)
    ]
    found = case(2, 100, steps)
    assert found.accounts.busy_ns / found.accounts.total_gpu_ns >= 0.998
    assert rules(found) == []


@pytest.mark.parametrize("margin", [0, 2])
def test_case_2_a_gate_that_moves_too_often_loses_caches_and_a_margin_keeps_them(margin: int):
    """verl#6533, #7435: aggressive thresholds regressed long contexts; a margin of 2 mends it."""
    steps: list[Row] = []
    for k in range(16):
        home = k % 4
        for index in range(8):
            # The gate moves a session whenever loads differ by more than its margin: by 1 here.
            home = (home + 1) % 4 if margin < 1 else home
            prompt = 4_000 + 2_000 * index
            cached = prompt - 2_000 if margin and index else 0
            at = 10.0 * index
            steps.append(step(f"t{k:02d}", home, at, at + 10, index, input_tokens=prompt,
                              cached_tokens=cached, output_tokens=400))  # fmt: skip
    found = case(4, 80, steps)
    if margin:
        assert rules(found) == []
        return
    assert rules(found) == ["cache-lost"]
    # 112 moves; each pays for the whole prompt before, 7 x (4,000 ... 16,000) tokens of 16.
    assert "112 of 128 steps changed worker and prefilled 1,120,000 tokens again" in title(
        found, "cache-lost"
    )


def test_case_3_equal_hit_rates_and_eleven_percent_apart_are_a_matter_of_balance():
    """Gym#2570: 12 engines, 13:57 with hit rate 91.6 %, 15:39 with 91.8 %."""
    level = [837.0] * 12
    skewed = [939.0 if w == 0 else 837.0 - 102 / 11 for w in range(12)]
    idle: list[float] = []
    for ends in (level, skewed):
        wall_s = max(ends)
        steps = [step(f"t{w}-{k}", w, 0, end, input_tokens=1000, cached_tokens=917)
                 for w, end in enumerate(ends) for k in range(8)]  # fmt: skip
        found = case(12, wall_s, steps)
        assert rules(found) == []
        idle.append(found.accounts.gpu_ns["tail_bubble"] / found.accounts.total_gpu_ns)
    assert idle[0] == 0
    assert 0.1 < idle[1] < 0.12


@pytest.mark.parametrize(("usage", "retracted"), [(0.94, 0), (0.96, 0), (0.96, 40)])
def test_case_18_token_usage_near_full_alone_is_no_finding_and_retractions_are(
    usage: float, retracted: int
):
    """sglang#14972, #6778: decode lines at a token usage of .94 to .96."""
    steps = [step(f"t{k}", 0, 10.0 * i, 10.0 * (i + 1), i) for k in range(20) for i in range(10)]
    polls = [
        {"worker_id": "w0", "at_ns": at * 10 * S, "ok": True, "forward_s": None, "idle_s": 0.0,
         "retracted": retracted * at / 10, "running": 20.0, "queue": 0.0, "kv_usage": usage}
        for at in range(11)
    ]  # fmt: skip
    found = case(1, 100, steps, counters=polls)
    assert found.signals.counted[0].kv_usage == usage
    assert rules(found) == (["kv-full"] if retracted else [])
    if retracted:
        assert "engines took requests back 40 times in 200 steps" in title(found, "kv-full")


def test_case_23_five_percent_of_aborts_spoil_a_third_of_the_groups_of_eight():
    """miles#2800: p = 5 % infrastructure aborts, n = 8: 1 - 0.95**8 of groups are made anew."""
    spoiled = round((1 - 0.95**8) * 100)
    steps = [
        step(f"g{g:03d}-{k}", g % 4, 0, 100, group_id=f"g{g:03d}")
        for g in range(100)
        for k in range(8)
    ]
    outcomes = {f"g{g:03d}-0": "aborted" for g in range(spoiled)}
    outcomes |= {f"g{g:03d}-1": "failed" for g in range(40 - spoiled)}
    found = case(4, 100, steps, outcomes=outcomes)
    assert rules(found) == ["group-waste"]
    said = title(found, "group-waste")
    assert "34 of 100 groups (34%) lost a sample: 40 of 800 trajectories failed" in said
    assert "cost 136 busy GPU-s once more" in said
    assert diagnose(found)[0].lost_share == pytest.approx(0.34)


def test_case_24_resumed_steps_that_exceed_the_models_length_are_refused_steps():
    """slime#2260: 19,202 + 24,576 = 43,778 tokens of 40,960: the engine answers 400."""
    steps = [step(f"t{w}{k}", w, 0, 100) for w in range(4) for k in range(4)]
    assert rules(case(4, 100, steps)) == []
    steps.append(step("resumed", 1, 50, 50.2, input_tokens=19_202, error_type="http_400"))
    found = case(4, 100, steps)
    assert rules(found) == ["refused-steps"]
    assert "1 of 17 steps (HTTP 400, 413 or 422), with prompts of up to 19,202 tokens" in title(
        found, "refused-steps"
    )
    assert "context + max_new_tokens <= max_model_len" in diagnose(found)[0].knob
