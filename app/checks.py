"""What can be known to be wrong before any process starts, and how is it said?

Each function ends the command with one sentence naming what was given and what is known; `address`
leaves that to whoever knows the setting. None of them starts or changes anything but the data
folder, which is made.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from heddle.app.errors import fail

MOST_GPUS: Final = 4096
"""Of a fleet; more is a slip of the finger, and plans for it take minutes."""
PREFIX: Final = "HEDDLE_"
OTHER_VARIABLES: Final = frozenset(
    ("HEDDLE_CONFIG", "HEDDLE_DIE_WITH_PARENT", "HEDDLE_ROUTER_PYTHON", "HEDDLE_PRIORITY_PORT")
)
"""Read from the environment elsewhere than in the settings."""


def address(said: str) -> str:
    """Where a service answers over HTTP; ValueError says what was expected."""
    from heddle.controller.wire import is_address

    if not is_address(said):
        message = "expected an address such as http://host:port"
        raise ValueError(message)
    return said


def profile(system: str, model: str) -> None:
    """The GPU type and the model must be ones whose speed is known."""
    from heddle.models.latency import SYSTEMS, is_measured, known_models

    if system not in SYSTEMS and not is_measured(system):
        asked = f"system {system!r} (--system or HEDDLE_FLEET__SYSTEM)"
        measured = "or a file that `heddle profile` measured"
        fail(f"{asked} is not known; choose one of {', '.join(SYSTEMS)}, {measured}")
    known = known_models(system)
    if model.rsplit("/", 1)[-1] not in known:
        asked = f"model {model!r} (--model or HEDDLE_FLEET__MODEL)"
        fail(f"{asked} has no profile on {system}; choose one of {', '.join(known)}")


def preset(name: str | None) -> None:
    """The preset must exist; None is none."""
    if name is None:
        return
    from heddle.controller.core.policies import PRESETS

    if name not in PRESETS:
        fail(f"--preset {name!r} is not known; choose one of {', '.join(PRESETS)}")


def host(name: str, family: int = socket.AF_UNSPEC) -> None:
    """This machine must be able to listen on the address."""
    asked = f"host {name!r} (--host or HEDDLE_HOST)"
    try:
        found = socket.getaddrinfo(name, 0, family, socket.SOCK_STREAM)
    except OSError as error:
        fail(f"{asked} does not resolve: {error.strerror}; 127.0.0.1 serves this machine alone")
    kind, _, _, _, address = found[0]
    with socket.socket(kind, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(address)
        except OSError as error:
            fail(f"{asked} is no address of this machine: {error.strerror}; try 127.0.0.1")


def data(folder: Path) -> None:
    """The data folder must be there, or be made, and take a file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        fail(
            f"the data folder {folder} cannot be written: {error.strerror}; "
            "choose another with --data or HEDDLE_DATA"
        )


def silent_workers(urls: Iterable[str]) -> list[str]:
    """The engines that do not answer now."""
    from heddle.app.compose import answers

    return [url for url in urls if not answers(f"{url.rstrip('/')}/health")]


def ignored_variables(environment: Mapping[str, str]) -> list[str]:
    """Names that begin like ours and that nothing reads, sorted."""
    from heddle.app.settings import Settings

    ours = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    parts = {"HEDDLE_PORTS__", "HEDDLE_FLEET__", "HEDDLE_COLLECT__"}
    return sorted(
        name
        for name in environment
        if name.startswith(PREFIX)
        and name not in OTHER_VARIABLES
        and name.upper() not in ours
        and not any(name.startswith(part) for part in parts)
    )


def mine() -> list[str]:
    """Those of this process."""
    return ignored_variables(os.environ)
