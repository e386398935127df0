"""`heddle switch`: see the policies in force, or change them live."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from heddle.app.commands import options

TYPER = options.help_with(
    "heddle switch",
    "heddle switch order=fcfs --why 'compare'",
    "heddle switch preset=verl --run exp-7",
)


def run(
    changes: Annotated[
        list[str] | None, typer.Argument(help="choice=policy ..., or preset=NAME.")
    ] = None,
    who: Annotated[str | None, typer.Option(help="Who asks; the user by default.")] = None,
    why: Annotated[str, typer.Option(help="The reason, kept with the change.")] = "",
    run_id: options.Run = None,
    controller: options.Controller = None,
    data: options.Data = None,
    token_file: options.TokenFile = None,
    json: options.Json = False,
) -> None:
    """Show or change the policies in force.

    A change takes effect at once, needs the token and is audited.
    """
    import getpass

    from heddle.app.commands.connect import controller_client

    asked = _parsed(changes or [])
    with controller_client(controller, data, token_file) as client:
        if asked:
            said = client.switch(run=run_id, who=who or getpass.getuser(), why=why, **asked)
        else:
            said = client.switches(run_id or "")
    _print(said, json=json)


def _parsed(changes: list[str]) -> dict[str, str]:
    from heddle.app.errors import fail
    from heddle.controller.core.policies import KNOWN

    pairs = [change.partition("=") for change in changes]
    for name, equals, policy in pairs:
        if not equals or not policy:
            fail(f"{name!r} is no change; say choice=policy, as order=fcfs, or preset=verl")
        if name not in KNOWN and name != "preset":
            fail(f"there is no choice {name!r} to switch; choose one of preset, {', '.join(KNOWN)}")
    return {name: policy for name, _, policy in pairs}


def _print(said: Any, *, json: bool) -> None:
    from heddle.app import show
    from heddle.app.commands.connect import plain

    told = plain(said)
    if json:
        show.as_json(told)
        return
    known = told.get("known", {})
    rows = [[c, policy, ", ".join(known.get(c, ()))] for c, policy in told["switches"].items()]
    show.table(["choice", "policy", "known"], rows, title=f"preset: {told.get('preset') or '-'}")
