"""`heddle rollback`: let the predictor before this one serve again."""

from __future__ import annotations

from heddle.app.commands import options

TYPER = options.help_with("heddle rollback --why 'worse live'")


def run(
    who: options.Who = None,
    why: options.Why = "",
    controller: options.Controller = None,
    data: options.Data = None,
    token_file: options.TokenFile = None,
    json: options.Json = False,
) -> None:
    """Let the predictor before serve again."""
    from heddle.app.commands.connect import asker, controller_client, show_predictor

    with controller_client(controller, data, token_file) as client:
        show_predictor(client.rollback(who=asker(who), why=why), json=json)
