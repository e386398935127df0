"""Which SGLang server takes the next step of verl, as Heddle's controller decides it?

verl's own `RequestLoadBalancer` protocol, loaded by `actor_rollout_ref.rollout.router_config_path`;
no patch. A controller that is away never stops training: steps then go where verl's own balancer
would send them (where they were, else to whoever has least to do), and that is counted.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import ray

from heddle.controller.verl_plugin.book import Book, Trajectory
from heddle.controller.verl_plugin.calls import Calls, Refused, Unreachable
from heddle.controller.verl_plugin.handle import StepHandle

LOG: Final = logging.getLogger("heddle.verl")
AT_ONCE: Final = 100_000
"""Calls an actor takes at a time: each held step is one that waits, releases must get past them."""
BEAT_S: Final = 1.0
LATE_S: Final = 60.0
"""A longer way from an agent loop to here is taken for a clock that is off."""
GRACE_S: Final = 5.0
"""How long a step's own report may come in after its release."""


class Router:
    """The balancer; `settings` is the router's YAML, its part `heddle` is ours."""

    def __init__(
        self,
        servers: Mapping[str, Any],
        settings: Mapping[str, Any],
        me: Callable[[], Any] | None = None,
    ) -> None:
        said: Mapping[str, Any] = settings.get("heddle") or {}
        self._run = str(said.get("run") or "verl")
        self._deadline_s = float(said.get("deadline_s", 30.0))
        self._quiet_s = float(said.get("quiet_s", 30.0))
        self._idle_s = float(said.get("idle_s", 600.0))
        self._prefix = bool(said.get("send_prompt_ids", True))
        self._calls = Calls(str(said.get("url") or "http://127.0.0.1:8600"), token_of(said))
        self._me = me or _this_actor
        self._servers: dict[str, Any] = dict(servers)
        self._running = dict.fromkeys(servers, 0)
        self._book = Book()
        self._by_rid: dict[str, Trajectory] = {}
        self._workers: dict[str, str] = {}
        """Heddle's worker id -> verl's server id."""
        self._rollout: asyncio.Task[str] | None = None
        self._told = False
        self._beat: asyncio.Task[None] | None = None
        self.alone = 0
        """Steps placed without the controller."""

    # verl's protocol

    async def require_acquire_fields(self) -> list[str]:
        """What of `generate()` comes along."""
        return ["prompt_ids"]

    async def require_release_fields(self) -> list[str]:
        """What of it comes back."""
        return ["request_id"]

    async def acquire_server(
        self, request_id: str, prompt_ids: Sequence[int] | None = None
    ) -> tuple[str, Any]:
        """The server of this step, and a handle that carries the decision there."""
        if not self._servers:
            # verl's fully-async client knows this sentence and waits for servers to come back.
            message = "No available servers in load balancer"
            raise RuntimeError(message)
        ids = list(prompt_ids or ())
        await self._freed(self._book.trajectories.get(request_id))
        rollout = await self._opened()
        trajectory = self._book.arrive(request_id, rollout, ids, time.monotonic())
        try:
            placed = await self._granted(trajectory, ids)
        except (Unreachable, Refused) as error:
            placed = None
            self._say_once(error)
        server, handle = placed or self._without(trajectory)
        self._running[server] = self._running.get(server, 0) + 1
        return server, handle

    async def release_server(self, server_id: str, request_id: str | None = None) -> None:
        """The step is over; what was not settled by then failed."""
        self._running[server_id] = max(self._running.get(server_id, 0) - 1, 0)
        trajectory = self._book.trajectories.get(request_id or "")
        if trajectory is None or not trajectory.busy:
            return
        rid = trajectory.rid
        if rid is None:
            self._book.leave(trajectory, ended=True, now_s=time.monotonic())
        elif not await self._freed(trajectory):
            await self.settle(rid, {"error": "failed"})

    async def add_servers(self, servers: Mapping[str, Any]) -> None:
        """They take steps from now on."""
        for server, handle in servers.items():
            self._servers[server] = handle
            self._running.setdefault(server, 0)
        await self._register(servers)

    async def remove_servers(self, server_ids: Sequence[str]) -> None:
        """They take no more."""
        for server in server_ids:
            self._servers.pop(server, None)
            self._running.pop(server, None)
            for worker in [w for w, s in self._workers.items() if s == server]:
                del self._workers[worker]
                await self._quietly(self._calls.delete(f"/workers/{worker}"))

    async def get_all_servers(self) -> list[str]:
        """Their addresses."""
        return list(self._servers)

    async def get_total_inflight(self) -> int:
        """Steps under way."""
        return sum(self._running.values())

    async def clear_sticky_cache(self) -> dict[str, Any]:
        """The trainer begins another phase: the window ends. Where a trajectory lives is known."""
        await self.end_rollout()
        return {"cleared_entries": 0, "server_loads": dict(self._running)}

    async def get_status(self) -> dict[str, Any]:
        """For a person who looks."""
        return {
            "servers": dict(self._running),
            "total_inflight": sum(self._running.values()),
            "active_servers": len(self._servers),
            "registered_handles": list(self._servers),
            "heddle": {"url": self._calls.url, "run": self._run, "steps_without": self.alone},
        }

    # what Heddle's own parts of verl call

    async def settle(self, rid: str, said: dict[str, Any]) -> None:
        """How a step went: told by its handle, from the agent loop's process."""
        trajectory = self._by_rid.pop(rid, None)
        if trajectory is None:
            return
        ended = "error" not in said
        self._book.leave(trajectory, ended=ended, now_s=time.monotonic())
        if self._prefix and trajectory.prompt is not None:
            said["input_ids"] = trajectory.prompt.tolist()
        else:
            said.pop("output_ids", None)
        # By then the agent may be in its tool; one clock a cluster is what verl needs anyway.
        late_s = time.time() - said.pop("at_s", math.inf)
        said["late_s"] = min(max(late_s, 0.0), LATE_S)
        await self._quietly(self._calls.post("/release", {"rid": rid, **said}))

    async def begin_rollout(
        self, *, expected: int = 0, kind: str = "train", step: int | None = None
    ) -> str:
        """The trainer says that a batch begins: no need to guess it."""
        await self.end_rollout()
        return await self._opened(expected=expected, kind=kind, step=step)

    async def end_rollout(self, *, quiet_s: float = 0.0) -> None:
        """The batch is done: everyone who is not in a step is finished, the window ends."""
        opened, self._rollout = self._rollout, None
        if opened is None:
            return
        rollout = await opened
        if not self._book.busy:
            await self._finish(time.monotonic())
        await self._quietly(
            self._calls.post(f"/rollouts/{rollout}/end", {"run": self._run, "quiet_s": quiet_s})
        )

    async def close(self) -> None:
        """End the rollout and the connections."""
        await self.end_rollout()
        if self._beat is not None:
            self._beat.cancel()
        await self._calls.close()

    # how

    async def _freed(self, trajectory: Trajectory | None) -> bool:
        """Whether its last step was settled: that call may come in after the one that follows."""
        if trajectory is None or not trajectory.busy:
            return True
        try:
            await asyncio.wait_for(trajectory.free.wait(), GRACE_S)
        except asyncio.TimeoutError:
            return False
        return True

    async def _opened(self, **said: Any) -> str:
        """The rollout under way; whoever comes first begins it."""
        if self._rollout is None:
            # A task of its own: whoever came first may be cancelled, and all wait for the same.
            self._rollout = asyncio.create_task(self._begin(said))
            self._beat = self._beat or asyncio.create_task(self._beating())
        return await asyncio.shield(self._rollout)

    async def _begin(self, said: Mapping[str, Any]) -> str:
        name = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S.%f")[:-3]
        self._book.begin()
        await self._register(self._servers.keys() - self._workers.values())
        asked: dict[str, Any] = {"run": self._run, "rollout": name}
        asked |= {"expected": said.get("expected", 0), "kind": said.get("kind", "train")}
        if said.get("step") is not None:
            asked["trainer_step"] = said["step"]
        await self._quietly(self._calls.post("/rollouts", asked, slack_s=120.0))
        # A layout may have been made meanwhile: that was no quiet time.
        self._book.last_s = time.monotonic()
        return name

    async def _granted(self, trajectory: Trajectory, ids: list[int]) -> tuple[str, Any]:
        asked: dict[str, Any] = {
            "run": self._run,
            "trajectory": trajectory.id,
            "step": trajectory.step,
            "rollout": trajectory.rollout,
            "group": trajectory.group,
            "sample": trajectory.sample,
            "deadline_s": self._deadline_s,
        }
        # The tokens themselves are told at the end: nobody waits for the milliseconds they take.
        asked["prompt_tokens"] = len(ids)
        trajectory.prompt = array("q", ids) if self._prefix and ids else None
        while True:
            said = await self._calls.post(
                "/acquire", asked, slack_s=self._deadline_s + 30.0, needs="rid"
            )
            if said["granted"]:
                break
        return await self._handed(trajectory, said)

    async def _handed(self, trajectory: Trajectory, said: dict[str, Any]) -> tuple[str, Any]:
        server = self._workers.get(said["worker"]) or str(said["url"]).partition("://")[2]
        if server not in self._servers:
            await self._calls.post("/release", {"rid": said["rid"], "error": "not_of_this_trainer"})
            message = f"{said['url']} is no server of this trainer; give it a controller of its own"
            raise Refused(message)
        trajectory.rid = rid = str(said["rid"])
        trajectory.server = server
        self._by_rid[rid] = trajectory
        extra = {key: said.get(key) for key in ("priority", "traceparent")}
        return server, StepHandle(self._servers[server], self._me(), rid, extra)

    def _without(self, trajectory: Trajectory) -> tuple[str, Any]:
        """Where verl's own balancer would send it."""
        self.alone += 1
        server = trajectory.server
        if server not in self._servers:
            server = min(self._servers, key=lambda name: self._running.get(name, 0))
        trajectory.server = server
        return server, self._servers[server]

    async def _register(self, servers: Iterable[str]) -> None:
        for server in servers:
            try:
                said = await self._calls.post(
                    "/workers", {"url": f"http://{server}"}, needs="worker_id"
                )
                self._workers[said["worker_id"]] = server
            except (Unreachable, Refused) as error:
                self._say_once(error)
                return

    async def _finish(self, before_s: float) -> None:
        gone = self._book.over(before_s)
        said = {"run": self._run, "outcome": "finished"}
        await asyncio.gather(
            *(self._quietly(self._calls.post(f"/trajectories/{t.id}/finish", said)) for t in gone)
        )

    async def _beating(self) -> None:
        """End what nobody comes back to: a sync trainer never says that its rollout is over."""
        while True:
            await asyncio.sleep(min(BEAT_S, self._quiet_s / 4))
            now_s = time.monotonic()
            await self._finish(now_s - self._idle_s)
            quiet_s = now_s - self._book.last_s
            begun = self._rollout is not None and self._rollout.done()
            if begun and not self._book.busy and quiet_s >= self._quiet_s:
                await self.end_rollout(quiet_s=quiet_s)

    async def _quietly(self, call: Awaitable[Any]) -> None:
        try:
            await call
        except (Unreachable, Refused) as error:
            self._say_once(error)

    def _say_once(self, error: Exception) -> None:
        if not self._told:
            self._told = True
            LOG.warning("%s; steps go where verl itself would send them until it answers", error)


def token_of(said: Mapping[str, Any]) -> str:
    """The controller's token, from the file that the YAML names; empty without one."""
    path = said.get("token_file")
    try:
        return Path(str(path)).expanduser().read_text("utf-8").strip() if path else ""
    except (OSError, ValueError) as error:
        # Training goes on without a controller, so it does without its token.
        LOG.warning(
            "no token from token_file %s (%s): is heddle up, and is that path absolute, as the "
            "folder of a Ray actor wants it? Engines register without one where it was started "
            "with --open-registration",
            *(path, error),
        )
        return ""


def _this_actor() -> Any:
    return ray.get_runtime_context().current_actor


_an_actor: Final[Any] = ray.remote
HeddleRouter: Final[Any] = _an_actor(max_concurrency=AT_ONCE)(Router)
"""What the YAML names: verl takes an actor class as it is."""
