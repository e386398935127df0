"""How is a predictor trained or evaluated while steps go on?

One job at a time, as a child process at low priority (`heddle.models.job`): this process never
imports torch, and a job that dies takes nothing with it. Jobs are kept in memory, the newest KEPT;
what training saved is in the registry whatever becomes of its job. Times are of the wall clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from heddle.controller.errors import BadRequest, Conflict, ControllerError, NotFound
from heddle.controller.fleet.process import die_with_parent
from heddle.controller.wire_predictor import GateRow, JobAsked, PredictorChoice, PredictorJob

KEPT: Final = 50
LIMIT_S: Final = 3600.0
"""100,000 rows train in a minute; what takes an hour hangs."""
LINE_BYTES: Final = 8 << 20
"""The last line holds the gate's table, about 200 bytes a row."""
STOP_S: Final = 5.0
COMMAND: Final = (sys.executable, "-m", "heddle.models.job")


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a job reads and writes."""

    collector: str
    registry: str
    collector_token: str | None = None


class Jobs:
    """Starts, follows and cancels; `promote` puts a version live."""

    def __init__(self, places: Places | None, promote: Callable[[PredictorChoice], object]) -> None:
        self._places = places
        self._promote = promote
        self._jobs: dict[str, PredictorJob] = {}
        self._number = 0
        self._task: asyncio.Task[None] | None = None

    def newest(self) -> list[PredictorJob]:
        """The newest first."""
        return list(reversed(self._jobs.values()))

    def get(self, job_id: str) -> PredictorJob:
        """One of them."""
        found = self._jobs.get(job_id)
        if found is None:
            message = f"no job {job_id!r}; GET /heddle/v1/predictor/jobs lists them"
            raise NotFound(message)
        return found

    @property
    def running(self) -> PredictorJob | None:
        """The one that has not ended."""
        return next((job for job in self._jobs.values() if job.state == "running"), None)

    def begin(self, asked: JobAsked) -> PredictorJob:
        """Start it; refused while another runs."""
        if self._places is None:
            message = (
                "this controller has no data folder or no collector: it can neither read traces "
                "nor keep a version; start it with --data and --collector-queries"
            )
            raise BadRequest(message)
        if (busy := self.running) is not None:
            message = f"job {busy.id} ({busy.kind}) still runs; wait for it or cancel it"
            raise Conflict(message)
        self._number += 1
        job = PredictorJob(
            id=f"job-{self._number}", kind=asked.kind, asked=asked, started_ns=time.time_ns()
        )
        self._jobs[job.id] = job
        for old in list(self._jobs)[:-KEPT]:
            del self._jobs[old]
        self._task = asyncio.create_task(self._run(job, self._places), name=f"heddle-{job.id}")
        return job

    async def cancel(self, job_id: str) -> PredictorJob:
        """End it; one that has ended stays as it is."""
        job = self.get(job_id)
        if job.state == "running":
            await self._stop()
        return job

    async def close(self) -> None:
        """The controller ends, and so does its job."""
        await self._stop()

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, job: PredictorJob, places: Places) -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                await self._follow(job, places)
        except asyncio.CancelledError:
            _end(job, "cancelled", "cancelled")
            raise
        except TimeoutError:
            _end(job, "failed", f"it took longer than {LIMIT_S:g} s")
        except (OSError, ValueError, KeyError, ControllerError) as error:
            _end(job, "failed", str(error))

    async def _follow(self, job: PredictorJob, places: Places) -> None:
        process = await _spawned()
        stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
        if stdin is None or stdout is None or stderr is None:
            message = "the process has no pipes"
            raise ControllerError(message)
        complaints = asyncio.create_task(stderr.read())
        try:
            # The collector's token travels on stdin: a command line is for everyone to read.
            stdin.write(_told(job.asked, places))
            stdin.close()
            while line := await stdout.readline():
                self._heard(job, json.loads(line))
            code = await process.wait()
            said = (await complaints).decode("utf-8", "replace").strip().splitlines()
        finally:
            await _ended(process)
            complaints.cancel()
        if job.state == "running":
            last = said[-1] if said else "it said nothing"
            _end(job, "failed", f"the process ended with {code} and no result: {last}")

    def _heard(self, job: PredictorJob, said: dict[str, Any]) -> None:
        if "error" in said:
            _end(job, "failed", said["error"])
        elif "result" in said:
            self._done(job, said["result"])
        else:
            job.progress = min(max(float(said["progress"]), job.progress), 1.0)
            job.sentence = str(said["sentence"])

    def _done(self, job: PredictorJob, result: dict[str, Any]) -> None:
        job.version, job.accepted = str(result["version"]), bool(result["accepted"])
        job.table = [GateRow.model_validate(row) for row in result["table"]]
        sentence = str(result["sentence"])
        if job.asked.promote and job.kind == "train" and job.accepted:
            try:
                self._promote(
                    PredictorChoice(version=str(job.version), who=job.asked.who, why=job.asked.why)
                )
                job.promoted = True
            except ControllerError as error:
                sentence = f"{sentence}; not promoted: {error}"
        job.progress = 1.0
        _end(job, "done", sentence)


async def _spawned() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *COMMAND,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=LINE_BYTES,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def _told(asked: JobAsked, places: Places) -> bytes:
    return json.dumps(
        {
            "collector": places.collector,
            "collector_token": places.collector_token,
            "registry": places.registry,
            **asked.model_dump(exclude={"promote", "why"}),
        }
    ).encode()


def _end(job: PredictorJob, state: Literal["done", "failed", "cancelled"], sentence: str) -> None:
    job.state, job.sentence, job.ended_ns = state, sentence, time.time_ns()


async def _ended(process: asyncio.subprocess.Process) -> None:
    """It has ended, or is made to."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_S)
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
