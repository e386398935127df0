"""What happened in one reallocation, phase by phase, for its spans and for whoever asks?

A phase of a worker begins where its last one ended, so that no instant is lost between them. What
drains is still what it was (busy, or waiting for tools); from its last step on until another engine
serves on its GPUs they are in `reallocation`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from heddle.collector import conventions as c
from heddle.collector import ids
from heddle.controller.clock import Clock
from heddle.controller.dataplane.spans import Spans

SAID: Final = {"drain": "drain_s", "stop": "sleep_s", "sleep": "sleep_s", "launch": "wake_s",
               "wake": "wake_s", "weights": "load_s"}  # fmt: skip
"""Phase -> the attribute of the whole that says its longest; stopping is as good as sleeping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One worker in one phase."""

    name: str
    worker: str
    degree: int
    start_ns: int
    end_ns: int
    error: str = ""

    @property
    def seconds(self) -> float:
        """Fleet seconds it took."""
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(slots=True, kw_only=True)
class Story:
    """One reallocation, from its decision to its end."""

    id: str
    before: tuple[int, ...]
    wanted: tuple[int, ...]
    because: str
    who: str
    rollouts: tuple[tuple[str, str], ...]
    """(run, rollout) of those it is told to."""
    clock: Clock
    spans: Spans
    start_ns: int
    end_ns: int = 0
    after: tuple[int, ...] = ()
    state: str = "running"
    """running, done, rolled back, failed"""
    error: str = ""
    waves: int = 0
    expected_s: float = 0.0
    gain_s: float | None = None
    floor_gpus: int = 0
    lowest_gpus: int = 0
    moved: int = 0
    phases: list[Phase] = field(default_factory=list[Phase])
    _marks: dict[str, int] = field(default_factory=dict[str, int])

    def mark(self, worker: str, at_ns: int | None = None) -> int:
        """Its next phase begins there, or now."""
        self._marks[worker] = now_ns = self.clock.now_ns() if at_ns is None else at_ns
        return now_ns

    def since_ns(self, worker: str) -> int:
        """Where its next phase begins."""
        return self._marks.get(worker, self.start_ns)

    @contextlib.contextmanager
    def phase(
        self, name: str, worker: str, degree: int, *, until_ns: int | None = None
    ) -> Generator[None]:
        """The block is a phase of that worker, also when it fails; it ends then, or now."""
        error = ""
        try:
            yield
        except BaseException as failure:
            error = str(failure) or type(failure).__name__
            raise
        finally:
            since_ns = self.since_ns(worker)
            end_ns = self.mark(worker, until_ns and max(until_ns, since_ns))
            phase = Phase(
                name=name, worker=worker, degree=degree, start_ns=since_ns,
                end_ns=max(end_ns, since_ns), error=error,
            )  # fmt: skip
            self.phases.append(phase)
            self._tell(phase)

    def close(self, state: str, after: tuple[int, ...], error: str = "") -> None:
        """It is over: its own span goes out."""
        self.end_ns = self.clock.now_ns()
        self.state, self.after, self.error = state, after, error
        for run, rollout in self.rollouts:
            self.spans.emit(
                c.REALLOCATE,
                trace_id=ids.trace_id(run, f"rollout/{rollout}"),
                span_id=self._span_id(run),
                parent_span_id=ids.span_id(run, "rollout", rollout),
                start_ns=self.start_ns,
                end_ns=self.end_ns,
                attributes={**self._named(run, rollout), **self._attributes()},
                error=error or None,
            )

    def _tell(self, phase: Phase) -> None:
        op = c.DRAIN if phase.name == "drain" else c.REGROUP
        for run, rollout in self.rollouts:
            about = {
                "gen_ai.operation.name": op,
                "heddle.phase": phase.name,
                "heddle.worker.id": phase.worker,
                "heddle.degree": phase.degree,
            }
            self.spans.emit(
                op,
                trace_id=ids.trace_id(run, f"rollout/{rollout}"),
                span_id=ids.span_id(run, self.id, phase.worker, phase.name, phase.start_ns),
                parent_span_id=self._span_id(run),
                start_ns=phase.start_ns,
                end_ns=phase.end_ns,
                attributes={**self._named(run, rollout), **about},
                error=phase.error or None,
            )

    def _span_id(self, run: str) -> str:
        return ids.span_id(run, c.REALLOCATE, self.id)

    def _named(self, run: str, rollout: str) -> dict[str, Any]:
        return {
            "heddle.run.id": run,
            "heddle.rollout.id": rollout,
            "heddle.clock.speed": self.clock.speed,
        }

    def _attributes(self) -> dict[str, Any]:
        return {
            "gen_ai.operation.name": c.REALLOCATE,
            "heddle.layout.before": layout(self.before),
            "heddle.layout.wanted": layout(self.wanted),
            "heddle.layout": layout(self.after),
            "heddle.because": self.because,
            "heddle.reallocate.state": self.state,
            "heddle.predicted.cost_s": self.expected_s,
            "heddle.predicted.gain_s": self.gain_s,
            **self._seconds(),
        }

    def _seconds(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, seconds in self.longest().items():
            if name in SAID:
                said = f"heddle.{SAID[name]}"
                found[said] = max(found.get(said, 0.0), seconds)
        return found

    def longest(self) -> dict[str, float]:
        """Each phase's longest, in fleet seconds."""
        found: dict[str, float] = {}
        for phase in self.phases:
            found[phase.name] = max(found.get(phase.name, 0.0), phase.seconds)
        return found


def layout(degrees: Iterable[int]) -> str:
    """Degrees as spans spell them, as 4,4."""
    return ",".join(map(str, degrees))
