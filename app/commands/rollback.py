"""`heddle rollback`: let the predictor before this one serve again."""

from __future__ import annotations

from heddle.app.commands import options

TYPER = options.help_with("heddle rollback")


def run(
    controller: options.Controller = None,
    data: options.Data = None,
    token_file: options.TokenFile = None,
    json: options.Json = False,
) -> None:
    """Let the predictor before serve again."""
    import getpass

    from heddle.app.commands.connect import controller_client, show_predictor

    with controller_client(controller, data, token_file) as client:
        show_predictor(client.rollback(who=getpass.getuser()), json=json)
