"""`heddle switch`: see the policies in force, or change them live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from heddle.app.commands import options

if TYPE_CHECKING:
    from heddle.controller.wire import AuditEntry

AUDITED: Final = 1_000

TYPER = options.help_with(
    "heddle switch",
    "heddle switch order=fcfs --why 'compare'",
    "heddle switch preset=verl --run exp-7",
    "heddle switch --undo --why 'it was slower'",
)


def run(
    changes: Annotated[
        list[str] | None, typer.Argument(help="choice=policy ..., or preset=NAME.")
    ] = None,
    who: options.Who = None,
    why: options.Why = "",
    undo: Annotated[
        bool, typer.Option("--undo", help="Put back what stood before the newest change.")
    ] = False,
    run_id: options.Run = None,
    controller: options.Controller = None,
    data: options.Data = None,
    token_file: options.TokenFile = None,
    json: options.Json = False,
) -> None:
    """Show or change the policies in force.

    A change takes effect at once, needs the token and is audited.
    """
    from heddle.app.commands.connect import asker, controller_client
    from heddle.app.errors import fail

    asked = _parsed(changes or [])
    if undo and asked:
        fail("--undo puts back what stood before; it takes no changes beside it")
    with controller_client(controller, data, token_file) as client:
        if undo:
            asked, version = _before(client.audit(limit=AUDITED), run_id or "")
            why = why or f"undo of version {version}"
        if asked:
            said = client.switch(run=run_id, who=asker(who), why=why, **asked)
        else:
            said = client.switches(run_id or "")
    _print(said, json=json)


def _before(audit: list[AuditEntry], run: str) -> tuple[dict[str, str], int]:
    """What the newest change of that run changed, as it was; and its version."""
    from heddle.app.errors import fail

    mine = [entry for entry in audit if entry.run == run]
    if not mine:
        of = f"for run {run!r}" if run else "for every run (--run names one of its own)"
        fail(f"nothing was switched {of} in the newest {AUDITED} changes; there is nothing to undo")
    newest = mine[0]
    return {e.choice: e.before for e in mine if e.at_ns == newest.at_ns}, newest.version


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
