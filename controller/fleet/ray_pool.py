"""How does a block of GPUs become an engine somewhere in a Ray cluster?

One actor an engine, in a placement group of its degree's GPUs packed on one node; Ray hands out the
GPUs themselves. An engine, an actor or a node that dies is replaced, on its own node while that
lives, elsewhere when it does not. Limit: an engine has its GPUs to itself, so none sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from heddle.controller.core.regroup import Place
from heddle.controller.errors import ControllerError, LaunchFailed
from heddle.controller.fleet.launcher import BACK_OFF_S, STEADY_S, Keeping, Kept, Started
from heddle.controller.fleet.ray_actor import EngineActor
from heddle.controller.fleet.ray_node import HOST, RayNode, unreachable
from heddle.controller.fleet.template import Template

NAMESPACE: Final = "heddle"
ROOM_S: Final = 10.0
"""Wall seconds a placement group may wait for GPUs that should be free."""
TRIES: Final = 3
"""Starts of a cluster: somebody else may have taken one of its ports meanwhile."""


@dataclass(slots=True)
class _Node:
    """One machine of the cluster."""

    id: str
    host: str
    gpus: int


@dataclass(slots=True)
class _Kept(Kept):
    """One engine, its actor and its GPUs."""

    worker_id: str
    place: Place
    actor: Any = None
    group: Any = None


class RayLauncher(Keeping[_Kept]):
    """Actors in placement groups; `address` None starts a cluster of logical GPUs here."""

    kind = "ray"
    why_not = "Ray gives each engine GPUs of its own: engines are stopped and started anew"

    def __init__(
        self,
        template: Template,
        log_dir: Path,
        *,
        gpus: int,
        address: str | None = None,
        ready_s: float = 60.0,
    ) -> None:
        super().__init__()
        self.nodes: tuple[int, ...] = ()
        self._template = template
        self._log_dir = log_dir.absolute()
        self._gpus = gpus
        self._address = address
        self._ready_s = ready_s
        self._cluster: list[_Node] = []
        self._here: RayNode | None = None

    async def open(self) -> None:
        """Reach the cluster, or start one; as many of its GPUs as are asked for."""
        await self._join()
        left = self._gpus
        for node in sorted(_alive(), key=lambda n: (-n.gpus, n.id)):
            taken = min(node.gpus, left)
            if taken:
                self._cluster.append(_Node(node.id, node.host, taken))
                left -= taken
        self.nodes = tuple(node.gpus for node in self._cluster)
        if left:
            message = f"the Ray cluster has {sum(self.nodes)} of the {self._gpus} GPUs asked for"
            raise LaunchFailed(message)

    async def start(self, worker_id: str, place: Place) -> Started:
        """An actor of its own, once its engine is healthy."""
        return await self._hold(worker_id, _Kept(worker_id, place))

    async def stop(self) -> None:
        """End every engine and leave the cluster; one that was started here ends."""
        await super().stop()
        await asyncio.to_thread(_ray().shutdown)
        if self._here is not None:
            await self._here.stop()

    async def _join(self) -> None:
        if self._address is not None:
            _reach(self._address)
            await asyncio.to_thread(_connect, self._address)
            return
        for left in reversed(range(TRIES)):
            # Before Ray is imported here: both imports take seconds.
            here = self._here = RayNode(self._gpus, self._log_dir / "ray.log")
            try:
                await asyncio.to_thread(_ray)
                await here.up()
                await asyncio.to_thread(_connect, here.address)
            except LaunchFailed:
                await here.stop()
                if not left:
                    raise
            else:
                return

    async def _begin(self, kept: _Kept) -> Started:
        return await self._begin_on(kept, self._home(kept))

    async def _begin_on(self, kept: _Kept, node: _Node | None) -> Started:
        from ray.exceptions import RayError

        try:
            return await self._placed(kept, node)
        except RayError as error:
            # Anywhere on the way a node may die: no reason to give up keeping the engine.
            lost = f"the engine of worker {kept.worker_id} was lost on its way"
            message = f"{lost} ({type(error).__name__})"
            raise LaunchFailed(message) from error

    async def _placed(self, kept: _Kept, node: _Node | None) -> Started:
        ray = _ray()
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        degree = kept.place.degree
        pinned: Any = {"bundle_label_selector": [{"ray.io/node-id": node.id}]} if node else {}
        kept.group = placement_group([{"GPU": degree}], strategy="STRICT_PACK", **pinned)
        try:
            await asyncio.wait_for(kept.group.ready(), ROOM_S)
        except TimeoutError:
            place = f"node {node.host}" if node else "any node"
            message = f"{place} has no {degree} free GPUs for worker {kept.worker_id}"
            raise LaunchFailed(message) from None
        strategy = PlacementGroupSchedulingStrategy(kept.group, 0)
        options = {"num_cpus": 0, "num_gpus": degree, "max_concurrency": 8}
        actor = ray.remote(EngineActor).options(scheduling_strategy=strategy, **options)
        log = str(self._log_dir / f"{kept.worker_id}.log")
        words = self._template.filled(kept.worker_id, kept.place, "{host}", "{port}")
        environment = self._template.environment(kept.place, gpus=False)
        kept.actor = actor.remote(words, environment, log)
        # Engines of a cluster that was started here are nobody else's to reach.
        host = HOST if self._address is None else await kept.actor.host.remote()
        return await self._serving(kept, host)

    async def _serving(self, kept: _Kept, host: str) -> Started:
        url, problem = await kept.actor.begin.remote(host, self._ready_s)
        if problem:
            message = f"the engine of worker {kept.worker_id} {problem}"
            raise LaunchFailed(message)
        kept.health.state, kept.health.node = "serving", host
        return Started(worker_id=kept.worker_id, url=url, degree=kept.place.degree)

    async def _keep(self, kept: _Kept) -> None:
        loop = asyncio.get_running_loop()
        failed, since_s = 0, loop.time()
        while True:
            if kept.health.state == "serving":
                kept.health.said = await self._until_ended(kept)
                kept.health.state = "waiting"
                await self.ended(kept.worker_id)
                failed = 0 if loop.time() - since_s > STEADY_S else failed
            await self._let_go(kept)
            await asyncio.sleep(BACK_OFF_S[min(failed, len(BACK_OFF_S) - 1)])
            failed += 1
            kept.health.restarts += 1
            home = self._home(kept)
            try:
                started = await self._begin_on(kept, home)
            except LaunchFailed:
                if home is None:
                    self._leave_out(kept.place.node)
                continue
            since_s = loop.time()
            try:
                await self.returned(started)
            except ControllerError as error:
                # Not taken in; it is kept all the same.
                kept.health.said = str(error)

    def _leave_out(self, node: int) -> None:
        """Its machine is gone and no other has room: no layout counts on it any more."""
        self.nodes = tuple(0 if n == node else gpus for n, gpus in enumerate(self.nodes))

    def _home(self, kept: _Kept) -> _Node | None:
        """Its node while that lives; else any."""
        node = self._cluster[kept.place.node]
        return node if any(n.id == node.id for n in _alive()) else None

    async def _until_ended(self, kept: _Kept) -> str:
        from ray.exceptions import RayError

        try:
            return str(await kept.actor.ended.remote())
        except RayError as error:
            return f"its actor was lost ({type(error).__name__})"

    async def _let_go(self, kept: _Kept) -> None:
        ray = _ray()
        from ray.exceptions import RayError
        from ray.util.placement_group import remove_placement_group

        actor, group = kept.actor, kept.group
        kept.actor = kept.group = None
        try:
            if actor is not None:
                with contextlib.suppress(RayError, TimeoutError):
                    await asyncio.wait_for(actor.stop.remote(), 10.0)
        finally:
            # Also where whoever keeps it is ended meanwhile: nobody else knows of these GPUs.
            if actor is not None:
                with contextlib.suppress(RayError):
                    ray.kill(actor)
            if group is not None:
                with contextlib.suppress(RayError):
                    remove_placement_group(group)


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        message = "--fleet ray needs Ray; pip install 'heddle-rollout[ray]'"
        raise LaunchFailed(message) from error
    return ray


def _alive() -> list[_Node]:
    """Nodes of the cluster with GPUs, dead ones left out."""
    return [
        _Node(node["NodeID"], node["NodeManagerAddress"], int(node["Resources"].get("GPU", 0)))
        for node in _ray().nodes()
        if node["Alive"]
    ]


def _reach(address: str) -> None:
    if error := unreachable(address):
        message = f"no Ray cluster answers at {address}: {error}; start one with ray start --head"
        raise LaunchFailed(message) from error


def _connect(address: str) -> None:
    ray = _ray()
    if ray.is_initialized():
        return
    try:
        ray.init(
            address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR",
            configure_logging=False,
        )  # fmt: skip
    except Exception as error:
        ray.shutdown()
        message = f"Ray cannot be used at {address}: {error}"
        raise LaunchFailed(message) from error
