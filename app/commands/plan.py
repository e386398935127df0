"""`heddle plan`: what the controller decided for the rollout it runs."""

from __future__ import annotations

from heddle.app.commands import options

TYPER = options.help_with("heddle plan", "heddle plan --json")


def run(controller: options.Controller = None, json: options.Json = False) -> None:
    """Show what the controller decided, and why."""
    from heddle.app import show
    from heddle.app.commands.connect import controller_client, plain

    with controller_client(controller, None, None) as client:
        told = plain(client.plan())
    if json:
        show.as_json(told)
        return
    for plan in told["plans"]:
        rows = [[key, "-" if value is None else str(value)] for key, value in plan.items()]
        show.table(["plan", ""], rows)
    if not told["plans"]:
        show.say("no rollout is open")
