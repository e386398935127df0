"""What does the span of a step, or of the tool after it, say?

What comes again and again is one object, encoded once: of a trajectory on a worker, and of how
steps go. Numbers are packed together, and the little that is left is looked at one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from heddle.collector import conventions as c
from heddle.collector.span_bytes import Numbers, Said, Shared
from heddle.controller.dataplane.usage import Usage
from heddle.controller.live import LiveTrajectory, Step

NO_NUMBERS: Final = Numbers()
HELD: Final = Numbers("heddle.held_s")
_SEGMENTS: Final = (
    "heddle.held_s", "heddle.queue_s", "heddle.prefill_s", "heddle.decode_s",
    "gen_ai.response.time_to_first_chunk",
)  # fmt: skip
SEGMENTS: Final = Numbers(*_SEGMENTS)
PREDICTED: Final = ("heddle.predicted.p10", "heddle.predicted.p50", "heddle.predicted.p90")
FORESEEN: Final = Numbers(*_SEGMENTS, *PREDICTED)


def of_step(step: Step, usage: Usage, end_ns: int, speed: float) -> Said:
    """All of a step that ended."""
    shared, grant, length = _shared(step, speed), step.granted, step.predicted
    if grant is None:
        whole_s = (end_ns - step.arrived_ns) / 1e9
        outcome = _outcome(None, None, "", usage.retractions, *_end_of(usage))
        said = Said((shared, outcome), HELD, (whole_s,))
    else:
        outcome = _outcome(
            grant.rank, step.priority, grant.because, usage.retractions, *_end_of(usage)
        )
        segments = _segments(step, usage, end_ns)
        if not usage.is_timed:
            said = _untimed(Said((shared, outcome), HELD, segments[:1]), usage, length, segments)
        elif length is None:
            said = Said((shared, outcome), SEGMENTS, segments)
        else:
            said = Said((shared, outcome), FORESEEN, (*segments, *length[:3]))
    said["heddle.step.index"] = step.index
    said["gen_ai.usage.input_tokens"] = usage.input_tokens
    said["gen_ai.usage.output_tokens"] = usage.output_tokens
    said["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    return said


def _untimed(
    said: Said, usage: Usage, length: Sequence[float] | None, segments: Sequence[float]
) -> Said:
    """Nobody knows what the engine did when: no zeros that nobody measured."""
    if usage.queue_s is not None:
        said["heddle.queue_s"] = segments[1]
    if usage.first_chunk_ns is not None:
        said["gen_ai.response.time_to_first_chunk"] = segments[4]
    if length is not None:
        said.update(zip(PREDICTED, length[:3], strict=True))
    return said


def whose_step(step: Step, speed: float) -> dict[str, Any]:
    """Of a step that began: which one it is stands apart."""
    return {
        **labels_of(step.trajectory),
        "gen_ai.operation.name": c.CHAT,
        "gen_ai.request.model": step.model or None,
        "gen_ai.provider.name": "sglang",
        "heddle.identity": step.whose.source,
        "heddle.clock.speed": speed,
    }


def _shared(step: Step, speed: float) -> Shared:
    """What all steps of the trajectory on that worker say: the same object while they do."""
    trajectory, grant = step.trajectory, step.granted
    at, degree = (grant.worker.id, grant.worker.degree) if grant else (None, None)
    version = step.predictor_version
    made_of = labels_of(trajectory), step.model, step.whose.source, version, at, degree
    known = trajectory.told
    if known is None or known[0] != made_of:
        worker = {"heddle.worker.id": at, "heddle.degree": degree}
        said = {**whose_step(step, speed), "heddle.predictor.version": version, **worker}
        known = trajectory.told = made_of, Shared(said)
    return known[1]


def of_tool(trajectory: LiveTrajectory, step_index: int, speed: float) -> Said:
    """All of a tool interval that somebody infers, after that step."""
    labels = labels_of(trajectory)
    known = trajectory.tools_told
    if known is None or known[0] is not labels:
        known = trajectory.tools_told = labels, Shared({
            **labels,
            "gen_ai.operation.name": c.EXECUTE_TOOL,
            "gen_ai.tool.name": "unknown",
            "heddle.tool.inferred": True,
            "heddle.clock.speed": speed,
        })  # fmt: skip
    said = Said((known[1],), NO_NUMBERS, ())
    said["heddle.step.index"] = step_index
    return said


def labels_of(trajectory: LiveTrajectory) -> dict[str, Any]:
    """What all its spans say of it: the same object until it says something else."""
    trace, known = trajectory.trace, trajectory.labels
    said = (trajectory.rollout, trajectory.group, trajectory.sample, trajectory.task, trace)
    if known is None or known[0] != said:
        labels = {
            "heddle.run.id": trajectory.run,
            "heddle.rollout.id": trajectory.rollout,
            "heddle.group.id": trajectory.group,
            "gen_ai.conversation.id": trajectory.id,
            "heddle.sample.index": trajectory.sample,
            "heddle.task": trajectory.task,
        }
        known = trajectory.labels = said, {k: v for k, v in labels.items() if v is not None}
    return known[1]


def _segments(step: Step, usage: Usage, end_ns: int) -> tuple[float, float, float, float, float]:
    whole_s = (end_ns - step.arrived_ns) / 1e9
    held_s = min(step.held_s, whole_s)
    queue_s, prefill_s, decode_s = usage.fitted(whole_s - held_s)
    first_s = held_s + queue_s + prefill_s
    if usage.first_chunk_ns is not None:
        first_s = max(usage.first_chunk_ns - step.arrived_ns, 0) / 1e9
    return held_s, queue_s, prefill_s, decode_s, first_s


def _end_of(usage: Usage) -> tuple[str | None, str | None]:
    return usage.policy_version, usage.finish_reason


# Few of them are told again and again: nearly every step was first of one, and ended by its length.
@lru_cache(maxsize=4096)
def _outcome(
    rank: int | None,
    priority: int | None,
    because: str,
    retractions: int | None,
    version: str | None,
    reason: str | None,
) -> Shared:
    decided = {"heddle.order.rank": rank, "heddle.priority": priority, "heddle.because": because}
    return Shared({
        **(decided if because else {}),
        "heddle.retractions": retractions,
        "heddle.policy_version": version,
        "gen_ai.response.finish_reasons": [reason] if reason else None,
    })  # fmt: skip
