"""`heddle predictor`: which predictor serves, which versions there are, and one version's card."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from heddle.app.commands import options

TYPER = options.help_with("heddle predictor", "heddle predictor show length-1a2b3c4d-c1-5e6f70")


def run(
    what: Annotated[str, typer.Argument(help="list, or show with a version.")] = "list",
    version: Annotated[str | None, typer.Argument(help="As `heddle predictor` lists it.")] = None,
    controller: options.Controller = None,
    json: options.Json = False,
) -> None:
    """Show which predictor serves, and the versions there are."""
    from heddle.app import show
    from heddle.app.commands.connect import controller_client
    from heddle.app.errors import fail

    if what not in ("list", "show"):
        fail(f"heddle predictor {what!r} is unknown; say list, or show VERSION")
    with controller_client(controller, None, None) as client:
        if what == "list":
            _listed(client.predictor(), json=json)
            return
        if version is None:
            fail("heddle predictor show needs a version; heddle predictor lists them")
        card = client.predictor_card(version)
    if json:
        show.as_json(card.model_dump())
    else:
        show.OUT.print(card.card, markup=False, soft_wrap=True)


def _listed(state: Any, *, json: bool) -> None:
    from datetime import datetime, timezone

    from heddle.app import show
    from heddle.app.commands.connect import show_predictor

    show_predictor(state, json=json)
    if json or not state.versions:
        return
    rows = [
        (
            v.version,
            datetime.fromtimestamp(v.created_ns / 1e9, timezone.utc).strftime("%Y-%m-%d %H:%M"),
            "accepted" if v.accepted else "refused",
            f"{v.metrics.get('spearman', float('nan')):.3f}",
            f"{v.metrics.get('recall20', float('nan')):.3f}",
            f"{v.metrics.get('coverage80', float('nan')):.0%}",
        )
        for v in state.versions
    ]
    show.table(("version", "trained", "gate", "Spearman", "recall 20 %", "coverage"), rows)
