"""What is wrong with a fleet, and what mends it?

Asks the settings, this machine, Ray's address and, where a controller answers, its workers: each
finding is one sentence with the fix. Starts and changes nothing.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import httpx
import psutil

from heddle.app.supervise import is_free
from heddle.controller.client import ControllerClient
from heddle.controller.errors import ControllerError
from heddle.controller.fleet.ray_node import unreachable

if TYPE_CHECKING:
    from heddle.app.settings import Settings
    from heddle.controller.wire_fleet import FleetState, FleetWorker

LEAST_DISK_GB: Final = 2.0
"""A store of a million spans is about 0.4 GB, a checkpoint doubles it for a moment."""
SKEW_S: Final = 2.0
"""An HTTP date has whole seconds; spans of two clocks this far apart are in the wrong order."""
ASK_S: Final = 3.0


def problems(settings: Settings) -> Iterator[str]:
    """What keeps a fleet from working."""
    yield from _disk(settings)
    yield from _ray(settings)
    yield from _memory(settings)
    if fleet := _fleet(settings):
        for worker in fleet.workers:
            yield from _worker(worker)
        yield from _agreement(fleet)


def notes(settings: Settings) -> Iterator[str]:
    """What works, but not as well as it could."""
    fleet = _fleet(settings)
    if fleet is None:
        where = settings.controller_url
        yield f"no controller answers at {where}, so no worker was asked; heddle up starts one"
        yield from _ports(settings)
        return
    if fleet.unavailable:
        yield f"the layout cannot change: {fleet.unavailable}"
    missing = {sentence for worker in fleet.workers for sentence in worker.missing}
    for sentence in sorted(missing):
        those = [w.worker_id for w in fleet.workers if sentence in w.missing]
        yield f"{', '.join(those)}: {sentence}"
    for sentence in sorted({w.sleep for w in fleet.workers if w.sleep}):
        yield f"a change of the layout stops engines and starts them anew: {sentence}"


def _disk(settings: Settings) -> Iterator[str]:
    folder = settings.data if settings.data.exists() else settings.data.absolute().parent
    if not folder.exists():
        return
    free_gb = shutil.disk_usage(folder).free / 1e9
    if free_gb < LEAST_DISK_GB:
        yield (
            f"{folder} has {free_gb:.1f} GB left; free some, move it with --data, or keep less "
            "(HEDDLE_COLLECT__KEEP_GB)"
        )


def _ray(settings: Settings) -> Iterator[str]:
    if settings.fleet.launcher != "ray":
        return
    if find_spec("ray") is None:
        yield "the fleet's launcher is ray and Ray is missing; pip install 'heddle-rollout[ray]'"
    address = settings.fleet.ray_address or ""
    if error := unreachable(address):
        yield (
            f"no Ray cluster answers at {address} ({error}); start it with ray start --head, or "
            "leave the address out"
        )


def _memory(settings: Settings) -> Iterator[str]:
    asked_gb, there_gb = settings.fleet.host_memory_gb, psutil.virtual_memory().total / 1e9
    if settings.fleet.launcher == "local" and asked_gb > there_gb:
        yield (
            f"host_memory_gb is {asked_gb:g} and this machine has {there_gb:.0f} GB; sleeping "
            "engines would be killed: set it to what is free"
        )


def _ports(settings: Settings) -> Iterator[str]:
    """Of engines that the local launcher would start."""
    fleet, first = settings.fleet, settings.ports.engines
    if fleet.workers or fleet.launcher != "local":
        return
    ports = range(first, first + fleet.gpus)
    if taken := [str(port) for port in ports if not is_free(port, settings.host)]:
        yield (
            f"of the engines' ports {ports[0]} to {ports[-1]} in use: {', '.join(taken)}; heddle "
            "up takes others, heddle control needs --first-port"
        )


def _fleet(settings: Settings) -> FleetState | None:
    """What a running controller says; None where none answers."""
    try:
        with ControllerClient(settings.controller_url, timeout_s=ASK_S) as client:
            return client.fleet()
    except ControllerError:
        return None


def _worker(worker: FleetWorker) -> Iterator[str]:
    if not worker.alive:
        said = f"; it last said: {worker.said}" if worker.said else ""
        mend = "mend what its log says" if worker.launched else "start it again, or take it out"
        yield f"worker {worker.worker_id} at {worker.url} {worker.state}{said}; {mend}"
        return
    if worker.restarts:
        yield (
            f"the engine of worker {worker.worker_id} was started again {worker.restarts} times; "
            f"it last said: {worker.said}; mend that, or look into its log in DATA/engines"
        )
    skew_s = _skew_s(worker.url)
    if abs(skew_s) > SKEW_S:
        yield (
            f"the clock of {worker.url} is {skew_s:+.0f} s off this machine's; set both by NTP, "
            "or spans of one trajectory are in the wrong order"
        )


def _skew_s(url: str) -> float:
    """The least that its Date header, which only says whole seconds, leaves; 0 where it has none.

    It was written at some time between the question and the answer.
    """
    asked_s = time.time()
    try:
        said = httpx.get(f"{url}/health", timeout=ASK_S, trust_env=False).headers.get("Date")
    except httpx.HTTPError:
        return 0.0
    if not said:
        return 0.0
    there_s, answered_s = parsedate_to_datetime(said).timestamp(), time.time()
    return max(there_s - answered_s, 0.0) + min(there_s + 1.0 - asked_s, 0.0)


def _agreement(fleet: FleetState) -> Iterator[str]:
    """Engines of one fleet must serve the same, or trajectories change their model by a move."""
    for what, path in (("weights", "/model_info"), ("version of SGLang", "/server_info")):
        key = "weight_version" if what == "weights" else "version"
        said: dict[str, list[str]] = {}
        for worker in fleet.workers:
            if worker.alive and (value := _asked(worker.url + path, key)):
                said.setdefault(value, []).append(worker.worker_id)
        if len(said) > 1:
            each = "; ".join(
                f"{value}: {', '.join(sorted(ids))}" for value, ids in sorted(said.items())
            )
            yield f"engines do not agree on the {what} ({each}); restart those that differ"


def _asked(url: str, key: str) -> str:
    try:
        return str(httpx.get(url, timeout=ASK_S, trust_env=False).json().get(key) or "")
    except (httpx.HTTPError, ValueError):
        return ""
