"""Which options do several commands share, and how are they spelled?"""

from __future__ import annotations

from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer

from heddle.app import checks


def finite(value: float | None) -> float | None:
    """A number to calculate with; `inf` and `nan` pass every range check of the parser."""
    if value is not None and not isfinite(value):
        said = f"expected a finite number, got {value}"
        raise typer.BadParameter(said)
    return value


def address(value: str | None) -> str | None:
    """An address to call; of commands that load no settings, which check it themselves."""
    try:
        return None if value is None else checks.address(value)
    except ValueError as error:
        said = f"{error}, got {value!r}"
        raise typer.BadParameter(said) from None


class Launchers(StrEnum):
    """Where engines run."""

    LOCAL = "local"
    RAY = "ray"


Data = Annotated[
    Path | None, typer.Option("--data", help="Folder of database, logs and token.", metavar="DIR")
]
Host = Annotated[str | None, typer.Option("--host", help="Address to listen on.")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option("--allow-host", help="A host name clients may call it by; repeat."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")]
Gpus = Annotated[
    int | None,
    typer.Option("--gpus", help="GPUs of the emulated fleet.", min=1, max=checks.MOST_GPUS),
]
Fleet = Annotated[
    Launchers | None, typer.Option("--fleet", help="Where engines run: local or ray.")
]
RayAddress = Annotated[
    str | None,
    typer.Option("--address", help="Of a running Ray cluster; else one is started here."),
]
Model = Annotated[
    str | None,
    typer.Option("--model", help="Model of the engines, for the speed expected of them."),
]
System = Annotated[
    str | None, typer.Option("--system", help="GPUs that speed is of: h100_sxm or h200_sxm.")
]
Seed = Annotated[
    int, typer.Option("--seed", help="Of everything that is drawn.", min=0, max=2**31 - 1)
]
Speed = Annotated[
    float | None,
    typer.Option(
        "--speed", help="Emulated seconds per second.", min=0.01, max=1_000_000.0, callback=finite
    ),
]
Collector = Annotated[
    str | None,
    typer.Option("--collector", help="Query address of a running collector.", metavar="URL"),
]
Controller = Annotated[
    str | None, typer.Option("--controller", help="Address of a running controller.", metavar="URL")
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="File that holds the control token.")
]
Who = Annotated[str | None, typer.Option(help="Who asks; the user by default.")]
Why = Annotated[str, typer.Option(help="The reason, kept with the change.")]
Run = Annotated[str | None, typer.Option("--run", help="The run; all of them when left out.")]
Rollout = Annotated[str | None, typer.Option("--rollout", help="Only this rollout.")]
Group = Annotated[str | None, typer.Option("--group", help="Only this group.")]
Task = Annotated[str | None, typer.Option("--task", help="Only this task family.")]
Worker = Annotated[str | None, typer.Option("--worker", help="Only this worker.")]
State = Annotated[str | None, typer.Option("--state", help="running, finished or abandoned.")]
OriginNs = Annotated[
    int,
    typer.Option(
        "--clock-origin-ns",
        help="Where emulated time starts, UTC nanoseconds; 0 is now.",
        min=0,
        max=2**63 - 1,
    ),
]
ClockSpeed = Annotated[
    float,
    typer.Option(
        "--clock-speed",
        help="Emulated seconds per second; 1 is the wall clock.",
        min=0.000_001,
        max=1_000_000.0,
        callback=finite,
    ),
]

RetrainEvery = Annotated[
    int | None, typer.Option(help="Train again after so many rollouts; 0 never does.", min=0)
]
WedgedS = Annotated[
    float | None,
    typer.Option(help="Seconds without progress after which an engine that answers is given up."),
]


def help_with(*examples: str) -> dict[str, Any]:
    """Keywords of a typer command whose --help ends with examples, one a line."""
    lines = "\n".join(f"  {example}" for example in examples)
    return {"epilog": f"\b\nExamples:\n{lines}"}
