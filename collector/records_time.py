"""Which columns do the queries return that explain where time went (blame, cost, findings ...)?

Part of `records.FRAMES`. GPU time is integer GPU-nanoseconds: GPUs times time.
"""

from __future__ import annotations

from typing import Final

from heddle.collector.decompose import PARTS, REWRITTEN
from heddle.collector.record_columns import Column, count, flag, ns, number, seconds, text

_RUN: Final = text("run_id", "the training experiment")
_ROLLOUT: Final = text("rollout_id", "the generation phase of the run")
_TRAJECTORY: Final = text("trajectory_id", "unique in its run")
_GROUP: Final = text("group_id", "the prompt whose samples these are")
_WORKER: Final = text("worker_id", "the engine")
_STATE: Final = text("state", "what those GPUs did")
_QUANTILES: Final = (
    count("count", "values counted"),
    number("p50", "middle"),
    number("p90", "where the tail begins"),
    number("p99", "far tail"),
    number("max", "the longest"),
)


def _gpu_ns(name: str, meaning: str) -> Column:
    return count(name, meaning, "GPU ns")


EXPLAINED: Final[dict[str, tuple[Column, ...]]] = {
    "blame": (
        text("by", "what key is: trajectory, group, tool, worker or state"),
        text("key", "who the GPUs waited for; null for idle time nobody answers for"),
        _gpu_ns("gpu_ns", "idle GPU time caused"),
        number("share", "of what is split"),
    ),
    "critical_path": (
        _TRAJECTORY,
        text("doing", "what it did: held, queued, prefill, decode, tool, move, ..."),
        ns("start_ns", "of this piece"),
        ns("end_ns", "of this piece"),
        _WORKER,
        text("tool_name", "the tool, where it was in one"),
    ),
    "decomposition": (
        _TRAJECTORY,
        _GROUP,
        text("task", "task family"),
        count("trajectories", "rolled up in this row"),
        ns("duration_ns", "first activity to last; the parts sum to it"),
        *(ns(part, f"{part.removesuffix('_ns')} time") for part in PARTS),
        ns(REWRITTEN, "of prefill, no part: lost too, or changed by the agent itself"),
    ),
    "findings": (
        text("rule", "which rule found it"),
        text("severity", "high or medium"),
        text("title", "one sentence with its numbers"),
        text("evidence", "the named query, with filters, that shows it"),
        text("knob", "what to change"),
        number("lost_share", "of all GPU time, what it cost at most"),
    ),
    "cost": (
        _TRAJECTORY,
        _GROUP,
        _gpu_ns("used_gpu_ns", "busy GPU time, shared by those in the batch"),
        _gpu_ns("caused_gpu_ns", "idle GPU time blamed on it"),
        number("price", "of both, in the currency of the filter price (per GPU hour)"),
    ),
    "efficiency": (
        _gpu_ns("total_gpu_ns", "GPUs times wall"),
        _gpu_ns("busy_gpu_ns", "a prefill or a decode was in the engine"),
        _gpu_ns("effective_gpu_ns", "busy, counted by how full the batch was"),
        _gpu_ns("recoverable_gpu_ns", "starved while another worker was full or had a queue"),
        _gpu_ns("unavoidable_gpu_ns", "starved while no other worker had work to give"),
        count("saturated", "batch from which on an engine counts as full"),
    ),
    "windows": (
        ns("start_ns", "of the interval"),
        ns("end_ns", "of the interval"),
        _WORKER,
        count("degree", "GPUs of that engine", "GPUs"),
        _STATE,
        _gpu_ns("gpu_ns", "GPUs times time"),
    ),
    "counters": (
        _WORKER,
        count("degree", "GPUs of that engine", "GPUs"),
        count("samples", "polls of it within the rollout"),
        count("failed", "polls it did not answer"),
        count("restarts", "times a counter fell: the engine restarted"),
        ns("covered_ns", "time between good polls"),
        ns("forward_ns", "forward execution in it; null where the engine does not count it"),
        ns("idle_ns", "without runnable or queued work; null where it does not count it"),
        ns("residence_ns", "a request was in the engine, by the spans, in the same time"),
        ns("host_overhead_ns", "resident, but no forward ran: the CPU was slower than the GPU"),
        count("retracted", "requests taken back, KV full; null where it does not count them"),
        number("kv_usage", "highest share of KV in use"),
        count("queue", "most requests waiting; null where it does not say"),
        flag("host_bound", "forward time is less than 70 % of residence"),
    ),
    "tail_slices": (
        text("by", "what key is: task, tool, worker, policy or preset"),
        text("key", "the slice"),
        text("metric", "output_tokens, steps, duration_s or tool_s"),
        *_QUANTILES,
        number("max_over_median", "the longest over the middle"),
    ),
    "spread": (
        _GROUP,
        count("samples", "untruncated trajectories of that prompt"),
        number("median_tokens", "middle sample", "tokens"),
        count("max_tokens", "longest sample", "tokens"),
        number("max_over_median", "longest over middle"),
        number("between_share", "of the variance of ln(tokens), what the prompt explains"),
    ),
    "stragglers": (
        _TRAJECTORY,
        _GROUP,
        text("task", "task family"),
        _WORKER,
        seconds("duration_s", "first activity to last"),
        count("output_tokens", "tokens generated", "tokens"),
        count("steps", "steps finished"),
        text("cause", "where most of its time went"),
        seconds("cause_s", "the time that took"),
        number("cause_share", "of its time"),
        _gpu_ns("caused_gpu_ns", "idle GPU time blamed on it"),
    ),
    "ccdf": (
        number("value", "of the filter metric"),
        number("share", "of trajectories at or above it"),
    ),
    "drift": (
        _ROLLOUT,
        ns("start_ns", "when the rollout began"),
        text("metric", "output_tokens, steps, duration_s or tool_s"),
        *_QUANTILES,
        number("p50_ratio", "to the rollout before"),
        number("p99_ratio", "to the rollout before"),
    ),
    "gather": (
        _ROLLOUT,
        ns("start_ns", "when the rollout began"),
        count("trainer_step", "the trainer's global step, where it says so"),
        seconds("makespan_s", "start to end"),
        seconds("step_s", "the trainer's step; null where nothing says how long it was"),
        text("step_source", "trainer, or next: up to the next rollout's start"),
        seconds("generating_s", "of the step, by the trainer; else the makespan"),
        number("rollout_share", "generating_s of step_s"),
        text("last_trajectory", "the one everyone waited for"),
        seconds("waited_s", "from the median trajectory's end to the last one's"),
        seconds("trajectory_wait_s", "summed over trajectories: own end to the last one's"),
        number("wait_share", "of the trajectories' time from the rollout's start to the last end"),
        number("truncated_share", "of the finished trajectories"),
    ),
    "trainer": (
        _ROLLOUT,
        count("trainer_step", "the trainer's global step"),
        text("phase", "gen, reward, update_actor ...; other is what no phase covers"),
        ns("start_ns", "of the phase; null for other"),
        ns("time_ns", "it took"),
        number("share", "of the step; phases that run beside each other add up to more than 1"),
    ),
    "device": (
        text("host", "the machine"),
        text("gpu", "which GPU of it"),
        _WORKER,
        count("samples", "within the rollout"),
        ns("covered_ns", "time the samples speak of"),
        number("sm_active", "share of SMs with work, mean over that time"),
        number("busy_share", "a request was there, by the spans; without a worker: all GPUs' mean"),
        number("apart", "busy_share - sm_active: resident, but the device had less to do"),
    ),
    "policy_parts": (
        text("by", "what key is: preset or policies"),
        text("key", "the preset, or the policies in force"),
        count("rollouts", "rolled up in this row"),
        seconds("makespan_s", "mean over these rollouts"),
        count("trajectories", "rolled up in this row"),
        ns("duration_ns", "of all of them; the parts sum to it"),
        *(ns(part, f"{part.removesuffix('_ns')} time") for part in PARTS),
        ns(REWRITTEN, "of prefill, no part: lost too, or changed by the agent itself"),
    ),
    "hot_spots": (
        _WORKER,
        count("trajectories", "that had a step there"),
        count("stayed", "of these, all of whose steps were there"),
        count("steps", "finished there"),
        count("output_tokens", "generated there", "tokens"),
        number("times_mean", "output_tokens over the mean of all workers"),
        number("busy_share", "of its leased GPU time"),
        number("queued_share", "of its leased GPU time: nothing ran while a request waited"),
        number("starved_share", "of its leased GPU time: no trajectory was there"),
    ),
    "tail_sources": (
        text("source", "token length, turns and tools, backend capacity, transfer and sync"),
        ns("time_ns", "of the stragglers, beyond the median trajectory's"),
        number("share", "of that excess"),
    ),
}
