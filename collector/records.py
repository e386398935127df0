"""Which columns, in which unit, does each named query of the collector return?

The one list that the queries, the client, the dashboards, the models and the docs share. Times
are integer nanoseconds UTC (`_ns`) or seconds (`_s`); null means not known (or not yet).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import polars as pl

from heddle.collector.record_columns import Column
from heddle.collector.record_columns import count as _n
from heddle.collector.record_columns import flag as _b
from heddle.collector.record_columns import ns as _ns
from heddle.collector.record_columns import number as _f
from heddle.collector.record_columns import seconds as _s
from heddle.collector.record_columns import text as _t
from heddle.collector.records_time import EXPLAINED

State = Literal["running", "finished", "abandoned"]


@dataclass(frozen=True, slots=True)
class RolloutKey:
    """Rollout ids are unique per run only."""

    run_id: str
    rollout_id: str


@dataclass(frozen=True, slots=True)
class TrajectoryKey:
    """A trajectory is identified by run and trajectory id, never by a trace id."""

    run_id: str
    trajectory_id: str


_RUN: Final = _t("run_id", "the training experiment")
_ROLLOUT: Final = _t("rollout_id", "the generation phase of the run")
_GROUP: Final = _t("group_id", "the prompt whose samples these are")
_TRAJECTORY: Final = _t("trajectory_id", "unique in its run")
_STEP: Final = _n("step_index", "which LLM call of its trajectory, from 0")
_STATE: Final = _t("state", "running, finished or abandoned")
_START: Final = _ns("start_ns", "when it began, UTC")
_END: Final = _ns("end_ns", "when it ended, UTC; null while it runs")
_DEGREE: Final = _n("degree", "GPUs of that engine", "GPUs")
_WORKER: Final = _t("worker_id", "the engine")
_ERROR: Final = _t("error_type", "what failed")
_BECAUSE: Final = _t("because", "the reason of the decision")
_WHOSE: Final = (_RUN, _ROLLOUT, _GROUP, _TRAJECTORY)

FRAMES: Final[dict[str, tuple[Column, ...]]] = {
    "runs": (
        _RUN,
        _n("rollouts", "rollouts seen"),
        _n("trajectories", "trajectories seen"),
        _ns("first_ns", "its earliest span began"),
        _ns("last_ns", "its latest span ended"),
    ),
    "rollouts": (
        _RUN,
        _ROLLOUT,
        _t("kind", "train or validate"),
        _t("preset", "the preset its switches equal, if any"),
        _t("policies", "switches in force, as choice=policy,..."),
        _STATE,
        _START,
        _END,
        _s("makespan_s", "start to end, or to the latest span while it runs"),
        _n("gpus", "GPUs leased to it", "GPUs"),
        _t("layout", "degrees of its workers, as 4,4"),
        _n("expected", "trajectories it will have"),
        _n("trajectories", "trajectories seen"),
        _n("finished", "trajectories finished"),
        _n("steps", "steps finished"),
        _n("tool_calls", "tool calls finished"),
        _n("moves", "moves finished"),
        _n("output_tokens", "tokens generated", "tokens"),
        _s("predicted_makespan_s", "what its plan expected"),
        _f("clock_speed", "emulated seconds per second; 1 is real"),
    ),
    "trajectories": (
        *_WHOSE,
        _n("sample_index", "which sample of its group, from 0"),
        _t("task", "task family"),
        _STATE,
        _START,
        _END,
        _s("duration_s", "start to end, or to its latest span while it runs"),
        _n("steps", "steps finished"),
        _n("tool_calls", "tool calls finished"),
        _n("peak_context_tokens", "largest prompt plus output of a step", "tokens"),
        _n("output_tokens", "tokens generated, all steps", "tokens"),
        _n("cached_tokens", "prompt tokens found cached, all steps", "tokens"),
        _n("input_tokens", "prompt tokens, cached included, all steps", "tokens"),
        _n("looked_up_tokens", "those of steps that tell how many were cached", "tokens"),
        _s("held_s", "waiting in the controller, all steps"),
        _s("queue_s", "waiting in the engine, all steps"),
        _s("prefill_s", "first forward to first token, all steps"),
        _s("decode_s", "first token to last, all steps"),
        _s("unknown_s", "beside held and queue, of steps that tell neither prefill nor decode"),
        _s("tool_s", "in tool calls"),
        _n("moves", "moves to another worker"),
        _n("workers", "different workers it was on"),
        _t("worker_id", "the worker of its latest step"),
        _n("retractions", "times an engine took a step back"),
        _f("predicted_p50", "output predicted at its first step", "tokens"),
        _f("reward", "what the trainer gave it"),
        _b("truncated", "ended by a limit: its length is censored"),
        _t("outcome", "finished, aborted, failed ..."),
        _n("errors", "spans of it that failed"),
    ),
    "groups": (
        _RUN,
        _ROLLOUT,
        _GROUP,
        _t("task", "task family"),
        _t("state", "running while any sample is; finished when all are"),
        _START,
        _END,
        _n("trajectories", "samples seen"),
        _n("finished", "samples finished"),
        _n("truncated", "samples ended by a limit"),
        _n("steps", "steps finished"),
        _n("tool_calls", "tool calls finished"),
        _n("output_tokens", "tokens generated", "tokens"),
        _n("longest_tokens", "tokens of the sample with the most", "tokens"),
        _s("longest_s", "the slowest sample"),
        _s("median_s", "the middle sample"),
        _f("mean_reward", "mean of what the trainer gave"),
    ),
    "steps": (
        *_WHOSE,
        _STEP,
        _t("trace_id", "32 hex digits"),
        _t("span_id", "16 hex digits"),
        _WORKER,
        _DEGREE,
        _STATE,
        _START,
        _END,
        _ns("held_ns", "waiting in the controller"),
        _ns("queue_ns", "waiting in the engine"),
        _ns("prefill_ns", "first forward to first token"),
        _ns("decode_ns", "first token to last"),
        _n("input_tokens", "prompt, cached included", "tokens"),
        _n("output_tokens", "generated", "tokens"),
        _n("cached_tokens", "prompt tokens found cached", "tokens"),
        _n("retractions", "times the engine took it back"),
        _n("order_rank", "place among the waiting, 0 first"),
        _n("priority", "band sent to the engine, higher first"),
        _f("predicted_p10", "remaining output, low", "tokens"),
        _f("predicted_p50", "remaining output, middle", "tokens"),
        _f("predicted_p90", "remaining output, high", "tokens"),
        _t("predictor_version", "who predicted"),
        _BECAUSE,
        _t("finish_reason", "why generation ended"),
        _ERROR,
    ),
    "tool_calls": (
        *_WHOSE,
        _n("step_index", "the step it followed, from 0"),
        _t("tool_name", "the tool"),
        _STATE,
        _START,
        _END,
        _s("duration_s", "start to end; null while it runs"),
        _b("inferred", "seen only as the gap between two steps"),
        _b("synthetic", "the time was drawn, not recorded"),
        _ERROR,
    ),
    "moves": (
        _RUN,
        _ROLLOUT,
        _TRAJECTORY,
        _n("step_index", "the step it came before, from 0"),
        _t("move_source", "worker left"),
        _t("move_target", "worker entered"),
        _t("move_method", "reprefill, l3_fetch or resume"),
        _n("move_tokens", "context that had to travel", "tokens"),
        _n("move_hit_tokens", "found cached on arrival", "tokens"),
        _s("hidden_s", "spent behind a tool call"),
        _s("exposed_s", "the trajectory waited for it"),
        _BECAUSE,
        _START,
        _END,
    ),
    "workers": (_RUN, _ROLLOUT, _WORKER, _DEGREE, _START, _END, _STATE),
    "spans": (
        _t("trace_id", "32 hex digits"),
        _t("span_id", "16 hex digits"),
        _t("parent_span_id", "16 hex digits; null for a root"),
        _t("name", "as sent"),
        _t("op", "what the span is"),
        _t("service", "service.name of the sender"),
        _START,
        _END,
        _t("status", "unset, ok or error"),
        _ERROR,
        _t("attrs", "every attribute as sent, JSON"),
        _t("events", "events as sent, JSON"),
        _ns("received_ns", "when the collector took it, on its own clock"),
        _t(
            "marks",
            "what is odd: running, abandoned, orphan (its parent never came), skewed (begins before"
            " its parent), negative (ends before it begins), multi_root; null when nothing is",
        ),
        _n("folded", "engine slices counted in it, not kept", "spans"),
    ),
    "ingest_lag": (
        _RUN,
        _t("service", "who sent them"),
        _ns("at_ns", "the minute in which they came, UTC"),
        _n("spans", "that came in it", "spans"),
        _s("lag_p50_s", "from a span's end on its sender's clock to its arrival: the middle"),
        _s("lag_p99_s", "the same of the slowest hundredth"),
        _s("lag_max_s", "the same of the slowest"),
    ),
    "switches": (
        _RUN,
        _ns("at_ns", "when"),
        _t("choice", "order, admission, placement ..."),
        _t("before", "policy before"),
        _t("after", "policy after"),
        _t("who", "who asked"),
        _t("why", "the reason given"),
    ),
    "plans": (
        _RUN,
        _ROLLOUT,
        _ns("at_ns", "when"),
        _t("layout", "degrees chosen, as 4,4"),
        _t("policies", "switches in force"),
        _t("preset", "the preset those equal, if any"),
        _s("predicted_makespan_s", "what the plan expects"),
        _s("solve_s", "what planning took"),
        _BECAUSE,
    ),
    "replays": (
        _RUN,
        _ns("at_ns", "when it was saved"),
        _t("of", "what was replayed: RUN/ROLLOUT, file or workload"),
        _t("cell", "which of its seeds"),
        _t("policy", "preset[/choice=policy]"),
        _n("gpus", "of the emulated fleet", "GPUs"),
        _t("layout", "degrees, as 4,4"),
        _s("makespan_s", "emulated"),
        _s("predicted_makespan_s", "what the plan expected"),
        _s("bound_s", "no policy ends sooner"),
        _f("idle_gpu_s", "of GPUs with nothing to do", "GPU s"),
        _s("held_s", "trajectories waited in the controller"),
        _n("moves", "trajectories moved"),
        _t("engines", "hash of the emulated engines' parameters: compare equal ones only"),
    ),
    "partition": (
        _t("worker_id", "the engine; null for GPUs in no worker"),
        _DEGREE,
        _t("state", "what those GPUs did"),
        _n("gpu_ns", "GPUs times time", "GPU ns"),
    ),
    "accounts": (
        _RUN,
        _ROLLOUT,
        _n("gpus", "GPUs leased", "GPUs"),
        _ns("wall_ns", "length of the window"),
        _ns("start_ns", "window start, UTC"),
        _ns("end_ns", "window end, UTC"),
        _b("provisional", "the rollout still runs: the window ends at its latest span"),
        _n("total_gpu_ns", "GPUs times wall; the partition sums to it", "GPU ns"),
        _t("source", "where the window came from: rollout span, or its steps"),
    ),
    "strips": (
        _t("worker_id", "the engine"),
        _DEGREE,
        _t("state", "what it did"),
        _ns("start_ns", "of this piece"),
        _ns("end_ns", "of this piece"),
        _n("gpus", "GPUs of it that count: the degree, unless leases exceed the fleet", "GPUs"),
    ),
    "history": (
        _RUN,
        _t("task", "task family"),
        _GROUP,
        _n("trajectories", "finished and not truncated"),
        _f("mean_log_tokens", "mean of ln(output tokens)"),
        _f("var_log_tokens", "sample variance of ln(output tokens); 0 for one"),
        _f("mean_steps", "mean steps, of the truncated ones too"),
        _s("mean_tool_s", "mean time in tools, of the truncated ones too"),
        _f("mean_tokens", "mean output tokens, of the truncated ones too", "tokens"),
        _n("truncated", "ended by a limit"),
        _f("mean_log_truncated", "mean of ln(output tokens) of these"),
    ),
    "calibration": (
        _RUN,
        _ROLLOUT,
        _t("predictor_version", "who predicted"),
        _n("steps", "predictions: one a step of a finished, untruncated trajectory"),
        _n("trajectories", "whose steps these are"),
        _f("covered", "share of truths between p10 and p90; 0.8 is calibrated"),
        _f("below", "share below p10"),
        _f("above", "share above p90"),
        _f("bias", "middle of truth / p50; above 1 it says too little"),
        _f("median_log_error", "middle of |ln(truth / p50)|"),
        _f("mae_tokens", "mean of |truth - p50|", "tokens"),
        _f("log_correlation", "of ln truth and ln p50"),
    ),
    "tail": (
        _t("metric", "output_tokens, steps, duration_s or tool_s"),
        _n("count", "trajectories counted"),
        _f("p50", "middle"),
        _f("p90", "where the tail begins"),
        _f("p99", "far tail"),
        _f("max", "the longest"),
        _f("max_over_median", "the longest over the middle"),
    ),
    **EXPLAINED,
}


def schema(query: str) -> dict[str, type[pl.DataType]]:
    """Column names and polars types of a named query, in order."""
    return {column.name: column.dtype for column in FRAMES[query]}


def empty(query: str) -> pl.DataFrame:
    """No rows, the right columns."""
    return pl.DataFrame(schema=schema(query))
