"""When is a predictor trained again by itself?

After every N rollouts that ended, if the controller was told to (it is off by default): a training
job on everything recorded, put live only if the gate accepts it. While another job runs, or nothing
can be trained, the next rollout's end asks again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from heddle.controller.errors import ControllerError
from heddle.controller.jobs import Jobs
from heddle.controller.wire_predictor import JobAsked

WHO: Final = "automatic"
SETTLE_S: Final = 5.0
"""Until the last spans of the rollout are stored: senders flush within a second or two."""


class Retraining:
    """Counts rollouts that ended; `every` 0 never trains."""

    def __init__(self, jobs: Jobs, every: int, settle_s: float = SETTLE_S) -> None:
        self._jobs = jobs
        self._every = every
        self._settle_s = settle_s
        self._ended = 0
        self._waits: asyncio.Task[None] | None = None
        self.refused = ""
        """Why it could not begin the last time."""

    def rollout_ended(self) -> None:
        """One more."""
        self._ended += 1
        waits = self._waits is not None and not self._waits.done()
        if self._every and self._ended >= self._every and not waits:
            self._waits = asyncio.create_task(self._begin(), name="heddle-retraining")

    def close(self) -> None:
        """Train nothing more."""
        if self._waits is not None:
            self._waits.cancel()

    async def _begin(self) -> None:
        await asyncio.sleep(self._settle_s)
        why = f"{self._ended} rollouts since the last training"
        try:
            self._jobs.begin(JobAsked(kind="train", promote=True, who=WHO, why=why))
        except ControllerError as error:
            self.refused = str(error)
        else:
            self._ended, self.refused = 0, ""
