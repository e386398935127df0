"""How soon does `heddle up --fleet ray` serve, and how soon does it replace what dies?

Emulated engines on clusters of this machine alone: wall seconds are this machine's and count its
cores, and CPU seconds are told beside the first of them.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil

from heddle.app.bench.figures import Figure, Say
from heddle.app.bench.served import used_s
from heddle.app.compose import Stack, launch
from heddle.app.errors import fail
from heddle.app.settings import Settings, load
from heddle.app.supervise import Supervisor
from heddle.controller.client import ControllerClient
from heddle.controller.fleet.process import free_port
from heddle.controller.fleet.ray_node import AGENTS, SMALL, own_token
from heddle.controller.wire import RolloutBegin

ENGINES: Final = 8
OF_A_NODE: Final = 2
LOOK_S: Final = 0.02
READY_S: Final = 300.0
BACK_S: Final = 120.0


@contextmanager
def stacked(**fleet: Any) -> Generator[tuple[Stack, Supervisor, float]]:
    """A stack of its own and when it was begun."""
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder:
        flags = {f"fleet.{name}": value for name, value in fleet.items()}
        settings: Settings = load({"data": Path(folder), **flags})
        settings.fleet.workers = ()
        began_s = time.monotonic()
        with Supervisor(settings.data / "logs") as supervisor:
            yield launch(supervisor, settings, strict=False, dashboard=False), supervisor, began_s


def on_ray(*, quick: bool, say: Say) -> dict[str, Figure]:
    """A cluster that `heddle up` starts; then one of three nodes, of which one is killed."""
    engines = OF_A_NODE if quick else ENGINES
    say(f"{engines} engines on Ray, of which an actor is killed")
    found = _started(engines)
    told = ", ".join(f"{name} {figure.value:.1f}" for name, figure in found.items())
    say(f"{told}; now a Ray node with engines on it is killed")
    return found | _node_lost()


def _started(engines: int) -> dict[str, Figure]:
    with _serving(engines) as (client, began_s):
        serving_s, cpu_s = time.monotonic() - began_s, _cpu_s()
        os.kill(_actor_of(client.workers()[0].url), signal.SIGKILL)
        replaced_s = _until(lambda: any(w.restarts and w.takes for w in client.fleet().workers))
    note = f"{engines} emulated engines, a cluster started by heddle up; {cpu_s:.0f} CPU-s"
    return {
        "ray_serving_s": Figure(serving_s, "s", 30, "lower", note),
        "ray_replaced_s": Figure(replaced_s, "s", 10, "lower", "its actor was killed"),
    }


def _node_lost() -> dict[str, Figure]:
    """Two nodes hold the engines, the third is spare; one but the head is killed."""
    gpus = 2 * OF_A_NODE
    with _cluster(3) as cluster, _serving(gpus, ray_address=cluster.address) as (client, _):
        cluster.remove_node(_node_of(cluster, client), allow_graceful=False)
        back_s = _until(lambda: sum(w.restarts > 0 for w in _taking(client)) >= OF_A_NODE)
        missing = gpus - len(_taking(client))
    note = f"3 Ray nodes of {OF_A_NODE} GPUs, one killed: its engines back after {back_s:.1f} s"
    return {"ray_node_lost": Figure(missing, "engines missing", 0, "lower", note)}


def _taking(client: ControllerClient) -> list[Any]:
    return [worker for worker in client.fleet().workers if worker.takes]


@contextmanager
def _serving(gpus: int, **more: Any) -> Generator[tuple[ControllerClient, float]]:
    """A stack on Ray whose engines serve, and when it was begun."""
    fleet: dict[str, Any] = {"gpus": gpus, "launcher": "ray", "speed": 1.0, "ready_s": READY_S}
    with (
        stacked(**fleet, **more) as (stack, _, began_s),
        ControllerClient(stack.controller_url, token=stack.token, timeout_s=600.0) as client,
    ):
        client.switch(preset="verl", who="bench")
        client.begin_rollout(RolloutBegin(run="fleet", rollout="ray"))
        yield client, began_s


@contextmanager
def _cluster(count: int) -> Generator[Any]:
    """So many nodes of a cluster here, the first of them its head."""
    own_token()
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster(initialize_head=True, head_node_args=_small())
    try:
        for _ in range(1, count):
            cluster.add_node(**_small())
        yield cluster
    finally:
        cluster.shutdown()


def _small() -> dict[str, Any]:
    """Settings of a node, its agents' ports chosen beforehand."""
    ports = {name: free_port("") for name in AGENTS}
    return {"num_gpus": OF_A_NODE, "num_cpus": 1, **SMALL, **ports}


def _node_of(cluster: Any, client: ControllerClient) -> Any:
    """A node but the head that has an engine."""
    actors = [psutil.Process(_actor_of(worker.url)) for worker in client.workers()]
    raylets = {actor.ppid() for actor in actors}
    for node in cluster.worker_nodes:
        if raylets & {info.process.pid for info in node.all_processes["raylet"]}:
            return node
    fail("no engine runs on any node but the head")


def _until(holds: Callable[[], bool]) -> float:
    """Seconds until it holds."""
    began_s = time.monotonic()
    while not holds():
        if time.monotonic() - began_s > BACK_S:
            fail(f"what was started, or killed and replaced, was not there after {BACK_S:g} s")
        time.sleep(LOOK_S)
    return time.monotonic() - began_s


def _actor_of(url: str) -> int:
    """The process that started the engine which listens there."""
    port = int(url.rpartition(":")[2])
    for one in psutil.net_connections(kind="tcp"):
        where: Any = one.laddr
        if one.status == psutil.CONN_LISTEN and where.port == port and one.pid:
            return psutil.Process(one.pid).ppid()
    fail(f"no process of this user listens on {port}")


def _cpu_s() -> float:
    """Of every process below this one."""
    spent_s = 0.0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            spent_s += used_s(child)
    return spent_s
