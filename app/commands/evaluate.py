"""`heddle evaluate`: how a version does on rollouts it never saw."""

from __future__ import annotations

from typing import Annotated

import typer

from heddle.app.commands import options

TYPER = options.help_with("heddle evaluate", "heddle evaluate length-1a2b3c4d-c1-5e6f70 --json")


def run(
    version: Annotated[
        str | None, typer.Argument(help="The one that serves when left out.")
    ] = None,
    run_id: options.Run = None,
    rollout: Annotated[str | None, typer.Option(help="Only this rollout.")] = None,
    collector: options.Collector = None,
    data: options.Data = None,
    json: options.Json = False,
) -> None:
    """Compare a predictor with group history on what it never saw.

    Only rollouts recorded since its training count.
    """
    from dataclasses import asdict

    from heddle.app import show
    from heddle.app.commands.connect import recorded, show_gate
    from heddle.app.settings import load
    from heddle.models.registry import Registry
    from heddle.models.review import review

    settings = load({"collector": collector, "data": data})
    dataset = recorded(settings.query_url, run_id, rollout)
    found = review(dataset, Registry(settings.data / "predictors"), version)
    table = found.verdict.table.to_dicts()
    if json:
        show.as_json({**asdict(found), "verdict": found.verdict.because, "table": table})
        return
    show_gate(table)
    show.OUT.print(f"{found.version}: {found.sentence}", markup=False, soft_wrap=True)
