"""From which number on does a rule speak? One table; docs/diagnose.md is generated from it."""

from __future__ import annotations

from typing import Final, NamedTuple


class Threshold(NamedTuple):
    """A number, what it counts, and why it is that number."""

    name: str
    value: float
    unit: str
    meaning: str


TABLE: Final[list[Threshold]] = []


def _t(name: str, value: float, unit: str, meaning: str) -> float:
    TABLE.append(Threshold(name, value, unit, meaning))
    return value


_GPU: Final = "of all GPU time"
STARVED: Final = _t(
    "STARVED", 0.25, _GPU,
    "tail_bubble + starved_gap; what a long-tailed rollout loses anyway stays below a quarter",
)  # fmt: skip
CROWDED: Final = _t(
    "CROWDED", 2.0, "times", "the busiest worker's busy share over the mean of the others"
)
UNEVEN: Final = _t(
    "UNEVEN", 1.3, "times", "the most tokens a worker generated over the mean of all workers"
)
ONE_TRAJECTORY: Final = _t(
    "ONE_TRAJECTORY", 0.3, "of the blame for starving",
    "from here on it is one trajectory's, below it is the layout's",
)  # fmt: skip
DECODE_BOUND: Final = _t(
    "DECODE_BOUND", 0.6, "of that trajectory's time", "decode; below, the trajectory itself waits"
)
ALONE: Final = _t(
    "ALONE", 0.8, "of the busy time",
    "only one worker was busy although three or more served (rllm#292: 1,389 s, one GPU at a time)",
)  # fmt: skip
GATHER_S: Final = _t(
    "GATHER_S", 1800.0, "s",
    "between the first and the last worker's end: NCCL's default timeout (verl#2629)",
)  # fmt: skip
SLOW_START: Final = _t(
    "SLOW_START", 0.3, _GPU, "ramp_up: before a worker's first request (verl#3114: 2 min at 0 %)"
)
TOOL_BOUND: Final = _t("TOOL_BOUND", 0.2, _GPU, "tool_wait: a GPU waited and a tool ran")
CLIENTS_WAIT: Final = _t(
    "CLIENTS_WAIT", 0.2, _GPU,
    "orchestrator: trajectories live, no tool, and no request at the engine (prime-rl#3211)",
)  # fmt: skip
CLIENT_BOUND: Final = _t(
    "CLIENT_BOUND", 0.25, "of the trajectories' time",
    "orchestrator: between steps, in no tool and at no engine (hermes-agent#64172: 1 s sleeps)",
)  # fmt: skip
WAITING: Final = _t("WAITING", 0.4, "of the trajectories' time", "held or queued")
QUEUED_IDLE: Final = _t("QUEUED_IDLE", 0.1, _GPU, "nothing ran while a request waited")
UNKNOWN: Final = _t("UNKNOWN", 0.1, _GPU, "not covered by telemetry")
MISSING: Final = _t(
    "MISSING", 0.005, "of all steps", "step indices that a trajectory skips: their spans were lost"
)
DOWN: Final = _t("DOWN", 0.02, _GPU, "an engine did not answer")
SLOW_ENGINE: Final = _t(
    "SLOW_ENGINE", 1.5, "times",
    "time per token, for its batch, over the median of the other workers of that degree",
)  # fmt: skip
WEIGHT_SYNC: Final = _t("WEIGHT_SYNC", 0.15, _GPU, "paused for weights")
SYNC_BLOCKED: Final = _t(
    "SYNC_BLOCKED", 0.05, _GPU, "paused for weights while named trajectories still ran (verl#4896)"
)
RETRACTED: Final = _t(
    "RETRACTED", 0.05, "times a step", "requests taken back because KV was full; at least ten"
)
THRASHED: Final = _t(
    "THRASHED", 0.3, "of prefilled tokens",
    "prefilled again on the worker that had them: evicted, KV is too small for its trajectories",
)  # fmt: skip
CACHE_LOST: Final = _t(
    "CACHE_LOST", 0.3, "of prefilled tokens",
    "prefilled again because the step went to a worker that never had them",
)  # fmt: skip
INVALID_LOOP: Final = _t(
    "INVALID_LOOP", 8, "calls", "tool calls of one trajectory that failed in a row"
)
REFUSED: Final = _t("REFUSED", 0.005, "of all steps", "an engine answered 400, 413 or 422")
SPOILED: Final = _t(
    "SPOILED", 0.1, "of all groups",
    "a sample failed or was aborted (miles#2800: 5 % of samples spoil a third of groups of 8)",
)  # fmt: skip
SEVERE: Final = _t("SEVERE", 0.4, "lost", "from here on a finding is high, below medium")
