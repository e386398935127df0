"""`heddle promote`: put a trained predictor live."""

from __future__ import annotations

from typing import Annotated

import typer

from heddle.app.commands import options

TYPER = options.help_with("heddle promote length-20260101-120000-ab12cd")


def run(
    version: Annotated[str, typer.Argument(help="As `heddle predictor` lists it.")],
    controller: options.Controller = None,
    data: options.Data = None,
    token_file: options.TokenFile = None,
    who: options.Who = None,
    why: options.Why = "",
    force: Annotated[bool, typer.Option("--force", help="Also one that the gate refused.")] = False,
    json: options.Json = False,
) -> None:
    """Put a version of the predictor live.

    A broken one is refused, and the one that serves goes on.
    """
    from heddle.app import show
    from heddle.app.commands.connect import asker, controller_client, show_predictor
    from heddle.app.errors import fail
    from heddle.controller.errors import ControllerError

    with controller_client(controller, data, token_file) as client:
        try:
            said = client.promote(version, who=asker(who), why=why, force=force)
            asked = client.switches().switches["prediction"]
        except ControllerError as error:
            # The registry speaks to programs; on a command line the same is a flag.
            fail(str(error).replace("force=True", "--force"))
    show_predictor(said, json=json)
    if not json and asked != "learned":
        show.OUT.print(
            f"no step asks it yet, prediction is {asked}: heddle switch prediction=learned",
            markup=False,
            soft_wrap=True,
        )
