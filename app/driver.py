"""How do hundreds of agents drive a rollout through the controller, as a trainer's would?

Each trajectory is a loop: send the context, take the output, wait for the tool, go on. Spans leave
through the trainer's own library. A failed trajectory is counted by the name of its error; nothing
waits without limit. Token ids are random and repeatable; their meaning is nobody's concern here.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, NoReturn

import aiohttp
import numpy as np
import orjson
from numpy.typing import NDArray

from heddle.collector.tracing import Emitter, Tracer, Trajectory
from heddle.controller.clock import Clock
from heddle.controller.emulator.workload import StepSpec, TrajectorySpec

VOCABULARY: Final = 32_000
"""Ids are drawn below this: the smallest vocabulary in common use (Llama 2, Mistral). An id that an
engine's model does not have kills a real SGLang."""
CLEAR_OF: Final = 1_000
"""And from here on, where special tokens and bytes are behind."""
PATIENCE_S: Final = 120.0
"""Wall seconds of 503s or refused connections after which a step counts as failed."""

Ids = NDArray[np.int32]


class StepFailed(Exception):
    """A step that was not answered; its text is the name under which it is counted."""


@dataclass(slots=True)
class DriveResult:
    """What the agents saw; the store's numbers are the ones to print."""

    trajectories: int = 0
    finished: int = 0
    steps: int = 0
    tool_calls: int = 0
    output_tokens: int = 0
    wall_s: float = 0.0
    late_s: float = 0.0
    """Fleet seconds that tool waits came back late, in all: this machine's lag, not the fleet's."""
    errors: Counter[str] = field(default_factory=Counter[str])


def token_ids(count: int, *key: object, vocabulary: int = VOCABULARY) -> Ids:
    """`count` ids that depend on the key alone; a longer draw begins with the shorter one."""
    digest = blake2b("\x1f".join(map(str, key)).encode(), digest_size=16).digest()
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
    low = min(CLEAR_OF, vocabulary // 2)
    return (low + rng.random(max(count, 0)) * (vocabulary - low)).astype(np.int32)


class Context:
    """The tokens of one trajectory so far, growing in place."""

    def __init__(self, spec: TrajectorySpec, *key: object, vocabulary: int = VOCABULARY) -> None:
        self._spec, self._key, self._vocabulary = spec, key, vocabulary
        self._ids: Ids = np.empty(1024, np.int32)
        self.tokens = 0

    @property
    def ids(self) -> Ids:
        """All of them."""
        return self._ids[: self.tokens]

    def observe(self, index: int, step: StepSpec) -> None:
        """Add what precedes the step; a negative count leaves the end of the context out."""
        count = step.observation_tokens
        if index == 0:
            self._put(0, self._drawn(count, "prompt", self._spec.group_id))
            return
        if step.reset:
            self.tokens = self._spec.prompt_tokens
        if count < 0:
            self.tokens = max(self.tokens + count, 1)
        else:
            self.append(self._drawn(count, self._spec.trajectory_id, index))

    def append(self, ids: Sequence[int] | Ids) -> None:
        """Add tokens at the end."""
        self._put(self.tokens, np.asarray(ids, np.int32))

    def _drawn(self, count: int, *what: object) -> Ids:
        return token_ids(count, *self._key, *what, vocabulary=self._vocabulary)

    def _put(self, at: int, ids: Ids) -> None:
        end = at + len(ids)
        if end > len(self._ids):
            grown = np.empty(max(end, 2 * len(self._ids)), np.int32)
            grown[:at] = self._ids[:at]
            self._ids = grown
        self._ids[at:end] = ids
        self.tokens = end


@dataclass(slots=True)
class _Fleet:
    """What all agents of one rollout share."""

    session: aiohttp.ClientSession
    url: str
    tracer: Tracer
    clock: Clock
    key: tuple[object, ...]
    agent: str
    vocabulary: int
    result: DriveResult
    progress: Callable[[DriveResult], None]


async def drive(
    trajectories: Sequence[TrajectorySpec],
    *,
    controller_url: str,
    emitter: Emitter,
    run: str,
    rollout: str,
    clock: Clock,
    seed: int = 0,
    agent: str = "agent",
    step_timeout_s: float = 600.0,
    vocabulary: int = VOCABULARY,
    progress: Callable[[DriveResult], None] = lambda _: None,
) -> DriveResult:
    """Run all trajectories at once, to their ends; errors are in the result, not raised."""
    result = DriveResult(trajectories=len(trajectories))
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=20.0, sock_read=step_timeout_s)
    began = time.monotonic()
    async with aiohttp.ClientSession(
        timeout=timeout, connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        url = controller_url.rstrip("/") + "/generate"
        tracer = Tracer(emitter, run, rollout, clock.now_ns)
        key = (seed, rollout)
        fleet = _Fleet(session, url, tracer, clock, key, agent, vocabulary, result, progress)
        async with asyncio.TaskGroup() as group:
            for spec in trajectories:
                group.create_task(_run(fleet, spec))
    result.wall_s = time.monotonic() - began
    return result


async def _run(fleet: _Fleet, spec: TrajectorySpec) -> None:
    try:
        with fleet.tracer.trajectory(
            spec.trajectory_id,
            group=spec.group_id,
            sample_index=spec.sample_index,
            task=spec.task,
            agent=fleet.agent,
        ) as trajectory:
            await _steps(fleet, spec, trajectory)
            trajectory.finish(outcome="finished", truncated=spec.truncated)
        fleet.result.finished += 1
    except StepFailed as failure:
        fleet.result.errors[str(failure)] += 1
    fleet.progress(fleet.result)


async def _steps(fleet: _Fleet, spec: TrajectorySpec, trajectory: Trajectory) -> None:
    context = Context(spec, *fleet.key, vocabulary=fleet.vocabulary)
    last = len(spec.steps) - 1
    for index, step in enumerate(spec.steps):
        context.observe(index, step)
        headers = trajectory.headers(step=index, final=index == last)
        output = await _generate(fleet, headers, context.ids, step.output_tokens)
        context.append(output)
        fleet.result.steps += 1
        fleet.result.output_tokens += len(output)
        if step.tool_name is not None:
            with trajectory.tool(step.tool_name, step=index, synthetic=step.tool_synthetic):
                await _tool(fleet, step.tool_s)
            fleet.result.tool_calls += 1
        fleet.progress(fleet.result)


async def _tool(fleet: _Fleet, tool_s: float) -> None:
    due_ns = fleet.clock.now_ns() + round(tool_s * 1e9)
    await fleet.clock.sleep(tool_s)
    fleet.result.late_s += max(fleet.clock.now_ns() - due_ns, 0) / 1e9


async def _generate(fleet: _Fleet, headers: dict[str, str], ids: Ids, tokens: int) -> list[int]:
    """The output ids of one step; waits out 503s and refused connections, up to PATIENCE_S."""
    sampling = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 1.0}
    body = orjson.dumps(
        {"input_ids": ids, "sampling_params": sampling}, option=orjson.OPT_SERIALIZE_NUMPY
    )
    headers = {**headers, "Content-Type": "application/json"}
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await _send(fleet, headers, body)
        except _Busy as busy:
            if time.monotonic() + busy.retry_s > deadline:
                raise StepFailed(busy.name) from None
            await asyncio.sleep(busy.retry_s)


class _Busy(Exception):
    """Try again later."""

    def __init__(self, name: str, retry_s: float) -> None:
        super().__init__(name)
        self.name, self.retry_s = name, retry_s


async def _send(fleet: _Fleet, headers: dict[str, str], body: bytes) -> list[int]:
    try:
        async with fleet.session.post(fleet.url, data=body, headers=headers) as reply:
            payload = await reply.read()
    except TimeoutError:  # before the connection errors: aiohttp's own timeout is both
        _fail("no answer in time")
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
        raise _Busy(type(error).__name__, 0.5) from error
    if reply.status in (429, 503):
        name = f"HTTP {reply.status}"
        raise _Busy(name, _retry_after(reply.headers.get("Retry-After")))
    if reply.status != 200:
        _fail(f"HTTP {reply.status}: {_reason(payload)}")
    return _output_ids(payload)


def _fail(name: str) -> NoReturn:
    raise StepFailed(name) from None


def _retry_after(value: str | None) -> float:
    try:
        return min(max(float(value or 1.0), 0.05), 10.0)
    except ValueError:
        return 1.0


def _output_ids(payload: bytes) -> list[int]:
    try:
        return orjson.loads(payload)["output_ids"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        _fail("an answer without output_ids")


def _reason(payload: bytes) -> str:
    """The error's sentence where there is one, at most 200 characters of the body where not."""
    try:
        error: Any = orjson.loads(payload)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return payload[:200].decode(errors="replace")
    return str(error.get("message", error) if isinstance(error, dict) else error)[:200]
