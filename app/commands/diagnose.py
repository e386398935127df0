"""`heddle diagnose`: where the GPU time of a rollout went, who is to blame, what would help."""

from __future__ import annotations

from typing import Annotated

import typer

from heddle.app.commands import options

TYPER = options.help_with(
    "heddle diagnose",
    "heddle diagnose --run exp-7 --rollout 12",
    "heddle diagnose --model Qwen3-14B --system h100_sxm --price 2.5",
    "heddle diagnose --json | jq .findings",
)


def run(
    run_id: Annotated[str | None, typer.Option("--run", help="The run; the latest one's.")] = None,
    rollout: Annotated[str | None, typer.Option(help="The rollout; the latest one.")] = None,
    top: Annotated[int, typer.Option(help="Rows of each list.", min=1)] = 5,
    price: Annotated[
        float, typer.Option(help="Of a GPU hour.", min=0.0001, callback=options.finite)
    ] = 2.0,
    model: options.Model = None,
    system: options.System = None,
    collector: options.Collector = None,
    json: options.Json = False,
) -> None:
    """Say where the GPU time of a rollout went, and why.

    Partition, blame, critical path, decomposition and findings; each sums exactly. With --model and
    --system, decode time is split by the fitted laws.
    """
    from heddle.app import show
    from heddle.app.commands.connect import collector_client
    from heddle.app.diagnosis import ask, document, newest, print_all

    with collector_client(collector) as client:
        row = newest(client, run_id, rollout)
        found = ask(client, row, laws=_laws(model, system), price=price)
    if json:
        show.as_json(document(found))
    else:
        print_all(found, top)


def _laws(model: str | None, system: str | None) -> list[str]:
    """The fitted laws as the query takes them; none unless asked for."""
    if model is None and system is None:
        return []
    from heddle.app import checks
    from heddle.models.latency import load_profile

    system, model = system or "h100_sxm", model or "Qwen3-14B"
    checks.profile(system, model)
    profile = load_profile(system, model)
    return [
        f"{degree}:{law.a_s * 1e3:.9g},{law.b_s * 1e3:.9g},{law.c_s * 1e6:.9g}"
        for degree, law in profile.degrees.items()
    ]
