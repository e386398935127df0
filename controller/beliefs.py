"""How long will a trajectory still be, as far as this controller believes?

Group history from the collector, fetched when a rollout begins and updated as siblings finish; if
the collector is away it goes on with what it saw itself, and says so. The promoted predictor of the
registry corrects it where prediction is `learned`. Also the rates of a run: tool seconds and
context growth as seen here.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl

from heddle.collector.client import CollectorClient
from heddle.collector.errors import CollectorError
from heddle.controller.calibration import Calibration
from heddle.controller.core.types import Length, Rates, Work
from heddle.controller.dataplane.usage import Usage
from heddle.controller.live import LiveTrajectory
from heddle.models.history import GroupHistory
from heddle.models.predictor import Predictor
from heddle.models.registry import Registry, load_active
from heddle.models.serve import Learned
from heddle.models.types import Length as Predicted
from heddle.models.types import Query

# A trajectory in a tool this many times longer than usual, or a minute, may never come back.
AWAY_TIMES: Final = 5.0
AWAY_S: Final = 60.0
DEFAULT_REMAINING: Final = 1024.0
RESET_SHARE: Final = 0.5
"""Of its last context a step brings less after a reset. A chat template that drops what was thought
in earlier turns takes less than that."""
FETCH_S: Final = 5.0
BEHIND_S: Final = 3.0
LOOK_S: Final = 0.25
"""How long, and how often, the collector is asked for what ended here; it commits once a second."""


@dataclass(slots=True)
class Seen:
    """Sums over what this controller saw of one run."""

    finished: int = 0
    total_tokens: float = 0.0
    output_tokens: float = 0.0
    gained_tokens: float = 0.0
    continued: int = 0
    """Steps whose output and gained tokens these are: not first ones, and none after a reset."""
    resets: int = 0
    """Times a context came back much shorter than it had been."""
    tools: int = 0
    tool_s: float = 0.0
    longest_tokens: float = 0.0
    truncated: int = 0

    @property
    def limit_tokens(self) -> float:
        """The longest so far, where some were cut off by a limit: none is expected beyond."""
        return self.longest_tokens if self.truncated else math.inf

    def ended(self, output_tokens: int, *, truncated: bool) -> None:
        """A trajectory of the run is over."""
        self.longest_tokens = max(self.longest_tokens, output_tokens)
        self.truncated += truncated
        self.finished += 1
        self.total_tokens += output_tokens

    @property
    def observed_per_step(self) -> float:
        """Tokens observed before each step but the first."""
        return max(self.gained_tokens - self.output_tokens, 0.0) / max(self.continued, 1)

    @property
    def resets_per_step(self) -> float:
        """Resets of the context for each step but the first."""
        return self.resets / max(self.continued + self.resets, 1)

    def grew(self, trajectory: LiveTrajectory, usage: Usage) -> None:
        """A step of it ended; said before the trajectory knows it."""
        if not trajectory.steps:
            return
        if usage.input_tokens < RESET_SHARE * trajectory.context_tokens:
            self.resets += 1
        else:
            self.continued += 1
            gained = usage.input_tokens + usage.output_tokens - trajectory.context_tokens
            self.gained_tokens += gained if gained > 0 else 0
            self.output_tokens += usage.output_tokens

    def rates(self) -> Rates:
        """As the core takes them."""
        # Asked for at every return: conditions cost a fifth of `max` (0.02 of 0.1 us).
        mean_tool_s = self.tool_s / self.tools if self.tools else 0.0
        growth = self.gained_tokens / self.output_tokens if self.output_tokens else 1.0
        mean = self.total_tokens / self.finished if self.finished else DEFAULT_REMAINING
        away_s = AWAY_TIMES * mean_tool_s
        return Rates(
            mean if mean > 1.0 else 1.0,
            growth if growth > 1.0 else 1.0,
            mean_tool_s,
            away_s if away_s > AWAY_S else AWAY_S,
        )


@dataclass(slots=True, kw_only=True)
class Expected:
    """One group of a rollout to come."""

    group: str
    samples: int
    task: str | None = None
    prompt_tokens: int = 0


@dataclass(slots=True)
class Beliefs:
    """One history a run; `queries` is the collector's query address, None for no collector."""

    queries: str | None = None
    token: str | None = None
    registry: Registry | None = None
    histories: dict[str, GroupHistory] = field(default_factory=dict[str, GroupHistory])
    seen: dict[str, Seen] = field(default_factory=dict[str, Seen])
    serving: dict[str, Predictor] = field(default_factory=dict[str, Predictor])
    """What answers where prediction is `learned`, by run; read from the registry when asked."""
    calibrations: dict[str, Calibration] = field(default_factory=dict[str, Calibration])
    """Whether predictions hold, by run; forgotten when a rollout begins."""
    unreachable: int = 0
    _never_stored: dict[str, int] = field(default_factory=dict[str, int])
    """By run: trajectories that ended here and were waited for in vain (deleted, retained no more,
    lost). They are not waited for again."""

    def of(self, run: str) -> GroupHistory:
        """The run's history; an empty one knows only how far lengths usually spread."""
        known = self.histories.get(run)
        if known is None:
            known = self.histories[run] = GroupHistory()
        return known

    def seen_of(self, run: str) -> Seen:
        """The run's sums."""
        known = self.seen.get(run)
        if known is None:
            known = self.seen[run] = Seen()
        return known

    def rates(self, run: str) -> Rates:
        """The run's rates as seen here."""
        return self.seen_of(run).rates()

    async def refresh(self, run: str, rollout: str) -> str:
        """Fetch the history before that rollout; returns what the predictions rest on.

        What ended a moment ago may not be stored yet: it waits up to BEHIND_S for as many as ended
        here, or a rollout would be planned without the one before it.
        """
        self.calibrations.pop(run, None)
        if self.queries is None:
            return "no collector is configured: lengths from what this controller saw"
        try:
            frame = await asyncio.to_thread(self._fetch, run, rollout)
            self.histories[run], groups = GroupHistory.from_frame(frame), frame.height
            self.serving.pop(run, None)
        except (CollectorError, ValueError, OSError) as error:
            self.unreachable += 1
            return f"history not available ({error}): lengths from what this controller saw"
        return f"lengths from the history of {groups} groups" if groups else "no history yet"

    def learned(self, run: str) -> Predictor:
        """The promoted predictor on that run's history; history itself where none is promoted."""
        known = self.serving.get(run)
        if known is None:
            history = self.of(run)
            known = load_active(self.registry, history) if self.registry else history
            self.serving[run] = known
        return known

    def reload(self) -> None:
        """The registry changed: the next prediction reads it."""
        self.serving.clear()

    def predict(self, policy: str, trajectory: LiveTrajectory) -> tuple[Length | None, str]:
        """Remaining tokens and who says so, as wide as this rollout shows lengths to be; None
        where prediction is switched off."""
        if policy == "none":
            return None, "none"
        told, version = self.told(policy, trajectory)
        return self._widened(trajectory, told), version

    def network(self, policy: str, run: str) -> Learned | None:
        """The trained predictor that answers for that run; None where history does."""
        served = self.learned(run) if policy == "learned" else None
        return served if isinstance(served, Learned) else None

    def held(self, trajectory: LiveTrajectory, found: Predicted) -> Length:
        """What a network said, as wide as this rollout shows lengths to be."""
        return self._widened(trajectory, _length(found))

    def _widened(self, trajectory: LiveTrajectory, told: Length) -> Length:
        if (known := self.calibrations.get(trajectory.run)) is None:
            known = self.calibrations[trajectory.run] = Calibration()
        if not trajectory.output_tokens:
            known.predicted(trajectory.id, told)
        return known.widened(told)

    def told(self, policy: str, trajectory: LiveTrajectory) -> tuple[Length, str]:
        """What the predictor itself says."""
        run = trajectory.run
        predictor = self.learned(run) if policy == "learned" else self.of(run)
        return _length(predictor.predict(query_of(trajectory))), predictor.version

    def survives(self, trajectory: LiveTrajectory) -> None:
        """It took one more step: its siblings may be longer than the early finishers say."""
        if known := self.calibrations.get(trajectory.run):
            known.survives(trajectory.id, trajectory.output_tokens)
        if trajectory.group is None:
            return
        self.of(trajectory.run).survives(
            trajectory.group, trajectory.id, trajectory.output_tokens, task=trajectory.task
        )

    def finished(self, trajectory: LiveTrajectory, truncated: bool = False) -> None:  # noqa: FBT001
        """It ended; a truncated one would have gone on."""
        if trajectory.output_tokens == 0:
            return
        if known := self.calibrations.get(trajectory.run):
            known.ended(trajectory.id, trajectory.output_tokens, truncated=truncated)
        if trajectory.group is not None:
            self.of(trajectory.run).observe(
                trajectory.group,
                trajectory.output_tokens,
                censored=truncated,
                task=trajectory.task,
                trajectory=trajectory.id,
            )
        self.seen_of(trajectory.run).ended(trajectory.output_tokens, truncated=truncated)

    def works(self, run: str, groups: Sequence[Expected], rng: np.random.Generator) -> list[Work]:
        """A rollout to come as one draw of each sample's length, never the same point twice.

        A length is as limits let it be: history's law is of what would be written without them.
        """
        works: list[Work] = []
        for group in groups:
            query = Query(group=group.group, run=run, task=group.task)
            history = self.of(run)
            law = history.total(query)
            free = law.mean()
            limited = history.mean_tokens(group.group, group.task) or free
            lengths = law.draws(group.samples, rng) * min(limited / free, 1.0)
            works += self.works_of(run, group, lengths.tolist())
        return works

    def works_of(self, run: str, group: Expected, lengths: Sequence[float]) -> list[Work]:
        """Samples of a group with those lengths: a longer one takes as many more steps and tools,
        or the longest of a coding rollout would be expected a quarter too short."""
        history, seen = self.of(run), self.seen_of(run)
        usual = max(history.mean_tokens(group.group, group.task) or 0.0, 1.0)
        tool_s = history.mean_tool_s(group.group, group.task) or 0.0
        steps = history.mean_steps(group.group, group.task) or 1.0
        works: list[Work] = []
        for length in lengths:
            tokens = min(length, seen.limit_tokens)
            more = max(steps * tokens / usual, 1.0) - 1.0
            works.append(
                Work(
                    output_tokens=tokens,
                    prompt_tokens=group.prompt_tokens,
                    observation_tokens=more * seen.observed_per_step,
                    steps=1.0 + more,
                    tool_s=tool_s * tokens / usual,
                    resets=more * seen.resets_per_step,
                )
            )
        return works

    def _fetch(self, run: str, rollout: str) -> pl.DataFrame:
        ended = self.seen_of(run).finished
        missed = self._never_stored.get(run, 0)
        with CollectorClient(self.queries or "", token=self.token, timeout_s=FETCH_S) as client:
            looks = round(BEHIND_S / LOOK_S)
            while True:
                frame = client.query("history", run=run, before_rollout=rollout)
                short = max(ended - _stored(frame), 0)
                if short <= missed or not looks:
                    self._never_stored[run] = short
                    return frame
                looks -= 1
                time.sleep(LOOK_S)


def _stored(history: pl.DataFrame) -> int:
    return sum(map(sum, history.select("trajectories", "truncated").iter_rows()))


def _group(trajectory: LiveTrajectory) -> str:
    # Without a group it is alone: nothing is learned from it, the task's level answers.
    return trajectory.group or f"alone/{trajectory.id}"


def _length(found: Predicted) -> Length:
    return Length._make(found)


def query_of(trajectory: LiveTrajectory) -> Query:
    """What a predictor may know of it now."""
    shape = trajectory.shape
    # In the order of its fields: every step makes one, and names double its price.
    return Query(
        _group(trajectory),
        trajectory.run,
        trajectory.task,
        trajectory.id,
        trajectory.sample,
        trajectory.prompt_tokens,
        trajectory.context_tokens,
        trajectory.output_tokens,
        trajectory.steps,
        shape.last_output_tokens,
        shape.max_output_tokens,
        shape.last_observation_tokens,
        shape.tool_calls,
        shape.tool_s,
        last_tool_s=shape.last_tool_s,
    )
