"""`heddle bench`: the product measures itself on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from heddle.app.commands import options

TYPER = options.help_with(
    "heddle bench demo --quick", "heddle bench fleet --part shifts", "heddle bench all"
)


def run(
    name: Annotated[str, typer.Argument(help="A bench, or all.")],
    quick: Annotated[bool, typer.Option("--quick", help="One run, in about a minute.")] = False,
    traces: Annotated[
        Path | None, typer.Option(help="Folder of normalised traces, for predict.", metavar="DIR")
    ] = None,
    part: Annotated[
        str | None, typer.Option(help="Only layouts, ray or shifts, for fleet.", metavar="NAME")
    ] = None,
    json: options.Json = False,
) -> None:
    """Measure Heddle on this machine.

    Exit code 0 whatever was met.
    """
    from heddle.app import show
    from heddle.app.bench import figures
    from heddle.app.errors import fail

    if traces is not None and name != "predict":
        fail(f"--traces is for `heddle bench predict`, not for {name}")
    if part is not None and name != "fleet":
        fail(f"--part is for `heddle bench fleet`, not for {name}")
    given = {"traces": traces, "part": part}
    more: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    names = list(figures.BENCHES) if name == "all" else [name]
    benches = {each: figures.load(each) for each in names}
    told = []
    for each, bench in benches.items():
        with show.spinner(f"bench {each}"):
            told.append(figures.document(each, bench(quick=quick, say=show.say, **more)))
    if json:
        show.as_json(told if name == "all" else told[0])
    else:
        show.OUT.print(figures.markdown(told), markup=False, soft_wrap=True)
