"""`heddle predictor`: which predictor serves, and which versions there are."""

from __future__ import annotations

from heddle.app.commands import options

TYPER = options.help_with("heddle predictor", "heddle predictor --json")


def run(controller: options.Controller = None, json: options.Json = False) -> None:
    """Show which predictor serves."""
    from heddle.app.commands.connect import controller_client, show_predictor

    with controller_client(controller, None, None) as client:
        show_predictor(client.predictor(), json=json)
