"""How do verl's `timing_s/*` metrics become the phases of its trainer steps?

Lines of the file logger ({"step": 3, "data": {"timing_s/gen": 31.27, ...}}) or of the console
logger (step:3 - timing_s/gen:31.27 - ...). They tell how long, not when: steps are laid one after
the other, so that the last one ends when the file was last written. What is told of the agents
(`agent_loop/tool_calls/max`, `agent_loop/slowest/response_length` ...) goes on the phase in which
they ran, as `verl.agent_loop.tool_calls.max`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from heddle.collector import conventions as c
from heddle.collector import ids
from heddle.collector.importers.documents import (
    Document,
    Found,
    ImportRefused,
    Source,
    lines_of,
    parsed,
    span,
    text_of,
)

DEFAULT_RUN: Final = "verl-import"
TIMING: Final = "timing_s/"
WITHIN: Final = ("generate_sequences", "reshard", "start_profile", "stop_profile")
"""Timers inside another phase, or of no length."""
WHOLE: Final = "step"
AGENTS: Final = "agent_loop/"
GENERATING: Final = "gen"
"""The phase in which the agents ran; without it what they did goes on the step."""
_STEP: Final = re.compile(r"\bstep:(\d+)\b")
_TIMER: Final = re.compile(
    r"(?:timing_s/|(?=\bagent_loop/))([\w./]+):(?:np\.float\d+\()?([-+.\deE]+)"
)


class _Step(NamedTuple):
    number: int
    place: str
    seconds: dict[str, float]
    """By phase, in the order of the log."""
    agents: dict[str, float]
    """What the agent loops were, by the name of its attribute."""

    @property
    def length_s(self) -> float:
        return max(self.seconds.get(WHOLE, 0.0), sum(s for _, s in self.phases))

    @property
    def phases(self) -> list[tuple[str, float]]:
        return [(name, s) for name, s in self.seconds.items() if name != WHOLE]


def read(source: Source) -> Iterator[Found]:
    """One group of phases a step; a step logged twice counts as it was logged last."""
    steps = {step.number: step for step in _steps(source)}
    if not steps:
        raise ImportRefused(source.path, "", f"has no line with a step and {TIMING}* metrics")
    at_s = source.path.stat().st_mtime - sum(step.length_s for step in steps.values())
    run = source.run or DEFAULT_RUN
    for step in steps.values():
        spans = list(_spans(run, step, at_s))
        at_s += step.length_s
        yield Found(spans, step.place, {"service.name": "verl"}, "verl-timing")


def _steps(source: Source) -> Iterator[_Step]:
    text_of(source.path)
    for number, line in lines_of(source.path):
        place = f"line {number}"
        if line.lstrip().startswith(b"{"):
            record = parsed(source.path, line, number)
            told = record.get("data") or {}
            ours = (TIMING, AGENTS)
            named = {k.removeprefix(TIMING): v for k, v in told.items() if k.startswith(ours)}
            step = record.get("step")
        else:
            text = line.decode(errors="replace")
            named, found = dict(_TIMER.findall(text)), _STEP.search(text)
            step = found.group(1) if found else None
        if step is not None and (seconds := _seconds(source, place, named)):
            yield _Step(int(step), place, seconds, _agents(source, place, named))


def _seconds(source: Source, place: str, named: Mapping[str, object]) -> dict[str, float]:
    """The phases that follow each other: those without a slash."""
    found: dict[str, float] = {}
    for name, value in named.items():
        if "/" in name or name in WITHIN:
            continue
        found[name] = _number(source, place, f"{TIMING}{name}", value)
        if found[name] < 0:
            raise ImportRefused(source.path, place, f"{TIMING}{name} is {value!r} seconds")
    return found


def _agents(source: Source, place: str, named: Mapping[str, object]) -> dict[str, float]:
    return {
        f"verl.{name.replace('/', '.')}": _number(source, place, name, value)
        for name, value in named.items()
        if name.startswith(AGENTS)
    }


def _number(source: Source, place: str, name: str, value: object) -> float:
    try:
        found = float(str(value))
    except ValueError:
        raise ImportRefused(source.path, place, f"{name} is {value!r}") from None
    if not math.isfinite(found):
        raise ImportRefused(source.path, place, f"{name} is {value!r}")
    return found


def _spans(run: str, step: _Step, start_s: float) -> Iterator[Document]:
    at_s = start_s
    whole = [(WHOLE, step.seconds[WHOLE])] if WHOLE in step.seconds else []
    agents_ran = GENERATING if GENERATING in step.seconds else WHOLE
    for name, seconds in [*whole, *step.phases]:
        said = {
            "gen_ai.operation.name": c.TRAINER,
            "heddle.run.id": run,
            "heddle.trainer.step": step.number,
            "heddle.trainer.phase": name,
            **(step.agents if name == agents_ran else {}),
        }
        begins_s = start_s if name == WHOLE else at_s
        at_s += 0 if name == WHOLE else seconds
        yield span(
            ids.trace_id(run, f"trainer/{step.number}"),
            ids.span_id(run, "trainer", step.number, name),
            f"{c.TRAINER} {name}",
            round(begins_s * 1e9),
            round(begins_s * 1e9) + round(seconds * 1e9),
            said,
        )
