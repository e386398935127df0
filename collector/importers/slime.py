"""How does slime's debug rollout dump (`--save-debug-rollout-data x_{rollout_id}.pt`) become spans?

A pickle: it is loaded with weights_only unless the person says that the file is trusted, since
loading a foreign pickle runs whatever its author wrote into it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any, Final

from heddle.collector import conventions as c
from heddle.collector import ids
from heddle.collector.importers.documents import Document, Found, ImportRefused, Source, span

DEFAULT_RUN: Final = "slime-import"
_TAKEN: Final = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "queue_time": "heddle.queue_s",
}
_OPS: Final = {"sglang_generate": c.CHAT, "generate_and_rm": c.INVOKE_AGENT}


def read(source: Source) -> Iterator[Found]:
    """Every sample that carries a trace."""
    dump = _loaded(source)
    samples = dump.get("samples") if isinstance(dump, Mapping) else None
    if not isinstance(samples, list):
        raise ImportRefused(source.path, "", "is no slime dump: it has no list `samples`")
    rollout = str(dump.get("rollout_id", source.path.stem))
    for number, sample in enumerate(samples):
        trace = sample.get("trace") if isinstance(sample, Mapping) else None
        if not isinstance(trace, Mapping):
            why = "has no trace; run slime with its tracing on"
            raise ImportRefused(source.path, f"sample {number}", why)
        spans = list(_spans(source, f"sample {number}", rollout, sample, trace))
        yield Found(spans, f"sample {number}", {"service.name": "slime"}, "slime-trace")


def _loaded(source: Source) -> Any:
    import torch

    try:
        return torch.load(source.path, map_location="cpu", weights_only=not source.trusted)
    except OSError as error:
        raise ImportRefused(source.path, "", f"cannot be read: {error.strerror}") from error
    except pickle.UnpicklingError as error:
        why = (
            "holds more than plain data and tensors, so loading it could run code of whoever made "
            "it; add --trusted only if that was you"
        )
        raise ImportRefused(source.path, "", why) from error
    except Exception as error:  # foreign bytes make torch fail in any way
        raise ImportRefused(source.path, "", "is no file that torch.load reads") from error


def _spans(
    source: Source, place: str, rollout: str, sample: Mapping[str, Any], trace: Mapping[str, Any]
) -> Iterator[Document]:
    run = source.run or DEFAULT_RUN
    trajectory = f"{rollout}/{trace.get('sample_id', place)}/{trace.get('attempt', 0)}"
    whose = {
        "gen_ai.conversation.id": trajectory,
        "heddle.run.id": run,
        "heddle.rollout.id": rollout,
        "heddle.group.id": str(trace.get("group_id", "")),
    }
    ends = {e.get("span_id"): e for e in trace.get("events", ()) if e.get("type") == "span_end"}
    steps = 0
    for event in trace.get("events", ()):
        if event.get("type") != "span_start":
            continue
        name = str(event.get("name"))
        extra: dict[str, Any] = {"gen_ai.operation.name": _OPS.get(name)}
        if name == "sglang_generate":
            extra["heddle.step.index"], steps = steps, steps + 1
        if name == "generate_and_rm":
            extra |= {"heddle.reward": _reward(sample), "heddle.truncated": _cut(sample)}
        yield _span(run, trajectory, event, ends.get(event.get("span_id")), {**whose, **extra})


def _span(
    run: str, trajectory: str, start: Mapping[str, Any], end: Any, given: Mapping[str, Any]
) -> Document:
    told = {**(start.get("attrs") or {}), **((end or {}).get("attrs") or {})}
    taken = {name: told.get(key) for key, name in _TAKEN.items()}
    rest = {f"slime.{k}": v for k, v in told.items() if isinstance(v, str | int | float | bool)}
    parent = start.get("parent_span_id")
    return span(
        ids.trace_id(run, trajectory),
        ids.span_id(run, trajectory, str(start.get("span_id"))),
        str(start.get("name")),
        round(float(start["ts"]) * 1e9),
        round(float(end["ts"]) * 1e9) if end else 0,
        {**given, **taken, **rest},
        parent=ids.span_id(run, trajectory, str(parent)) if parent else "",
    )


def _reward(sample: Mapping[str, Any]) -> float | None:
    reward = sample.get("reward")
    return float(reward) if isinstance(reward, int | float) else None


def _cut(sample: Mapping[str, Any]) -> bool | None:
    status = sample.get("status")
    return None if status is None else "truncated" in str(status).lower()
