"""When is a trajectory's length foreseen, and did anybody wait for it?

After each step, while the agent's tool runs: a trained network answers all that ended in the same
turn of the event loop in a thread of its own, and what it says is in force when it is back. A step
that comes first does not wait for the thread: its prediction is made there and then, and counts as
exposed. Group history takes microseconds and is asked in place, without a span.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from heddle.controller.beliefs import Beliefs, query_of
from heddle.controller.clock import Clock
from heddle.controller.dataplane.spans import Predicted, StepSpans
from heddle.controller.live import LiveTrajectory
from heddle.models.serve import Learned
from heddle.models.types import Outlook


class _Batch(NamedTuple):
    """What one call of the thread is asked."""

    network: Learned
    of: list[LiveTrajectory]


class Foresight:
    """Keeps `remaining` of live trajectories as the prediction policy of their run says it."""

    def __init__(
        self, clock: Clock, beliefs: Beliefs, spans: StepSpans, policy_of: Callable[[str], str]
    ) -> None:
        self._clock = clock
        self._beliefs = beliefs
        self._spans = spans
        self._policy_of = policy_of
        self._pool: ThreadPoolExecutor | None = None
        self._asked: dict[LiveTrajectory, int] = {}
        """Since when, fleet time; until somebody answers."""
        self._new: list[LiveTrajectory] = []
        self._batches: set[asyncio.Task[None]] = set()
        self.failures = 0
        self.hidden_s = self.exposed_s = 0.0

    def close(self) -> None:
        """No more answers."""
        for batch in self._batches:
            batch.cancel()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def refresh(self, trajectory: LiveTrajectory, policy: str) -> None:
        """What is believed is of that policy, the one in force, and of the latest step."""
        if trajectory.believed != policy or trajectory in self._asked:
            self.believe(trajectory)

    def settle(self, trajectory: LiveTrajectory) -> None:
        """Its next step is here: it does not wait for the thread."""
        if trajectory in self._asked:
            self.believe(trajectory)

    def believe(self, trajectory: LiveTrajectory) -> None:
        """Ask now."""
        policy = self._policy_of(trajectory.run)
        self._believe(trajectory, policy, self._beliefs.network(policy, trajectory.run))

    def _believe(self, trajectory: LiveTrajectory, policy: str, network: Learned | None) -> None:
        trajectory.believed = policy
        since_ns = self._asked.pop(trajectory, None)
        # One span a step; what a sibling's end changes meanwhile is on the step's own span.
        told_of = since_ns is not None or trajectory.remaining is None
        if network is None or not told_of:
            length, version = self._beliefs.predict(policy, trajectory)
            trajectory.remaining, trajectory.predictor_version = length, version
            trajectory.changed()
            return
        began_ns = self._clock.now_ns()
        (outlook,) = network.outlook_many([query_of(trajectory)])
        self._believed(trajectory, network, outlook, (since_ns or began_ns, began_ns))

    def stepped(self, trajectory: LiveTrajectory) -> None:
        """A step of it ended: ask while its tool runs."""
        policy = self._policy_of(trajectory.run)
        if self._beliefs.network(policy, trajectory.run) is None:
            self._believe(trajectory, policy, None)
            return
        trajectory.believed = policy
        self._asked[trajectory] = self._clock.now_ns()
        if not self._new:
            asyncio.get_running_loop().call_soon(self._start)
        self._new.append(trajectory)

    def _start(self) -> None:
        by_run: dict[str, list[LiveTrajectory]] = {}
        for trajectory in dict.fromkeys(self._new):
            if trajectory in self._asked:
                by_run.setdefault(trajectory.run, []).append(trajectory)
        self._new = []
        for run, those in by_run.items():
            network = self._beliefs.network(self._policy_of(run), run)
            if network is None:
                for trajectory in those:
                    self.believe(trajectory)
                continue
            task = asyncio.create_task(self._answer(_Batch(network, those)))
            self._batches.add(task)
            task.add_done_callback(self._batches.discard)

    async def _answer(self, batch: _Batch) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="heddle-predict")
        queries = [query_of(trajectory) for trajectory in batch.of]
        asked = [self._asked.get(trajectory) for trajectory in batch.of]
        try:
            # History changes with every step: it is read here, the network is asked there.
            x = batch.network.features_of(queries)
            running = asyncio.get_running_loop()
            told = await running.run_in_executor(self._pool, batch.network.outlook_of, x, queries)
        except Exception:  # noqa: BLE001 (the loop must live; counted, the next step asks in place)
            self.failures += 1
            return
        for trajectory, since_ns, outlook in zip(batch.of, asked, told, strict=True):
            # A step came first, or another ended since: it was answered in place.
            if since_ns is not None and self._asked.get(trajectory) == since_ns:
                del self._asked[trajectory]
                self._believed(trajectory, batch.network, outlook, (since_ns, None))

    def forget(self, trajectory: LiveTrajectory) -> None:
        """It is over."""
        self._asked.pop(trajectory, None)

    def _believed(
        self,
        trajectory: LiveTrajectory,
        network: Learned,
        outlook: Outlook,
        since: tuple[int, int | None],
    ) -> None:
        """In force from now on; `since` is when it was asked, and when somebody began to wait."""
        asked_ns, waited_ns = since
        end_ns = max(self._clock.now_ns(), asked_ns)
        exposed_ns = 0 if waited_ns is None else end_ns - waited_ns
        trajectory.remaining = self._beliefs.held(trajectory, outlook.length)
        trajectory.predictor_version = network.version
        trajectory.changed()
        self.exposed_s += exposed_ns / 1e9
        self.hidden_s += (end_ns - asked_ns - exposed_ns) / 1e9
        said = Predicted(
            network.version, trajectory.remaining, outlook.steps, outlook.tool_s, exposed_ns
        )
        self._spans.predicted(trajectory, said, asked_ns, end_ns)
