"""`heddle train`: a length predictor from the store's own traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from heddle.app.commands import options

if TYPE_CHECKING:
    from heddle.models.train import TrainResult

TYPER = options.help_with("heddle train", "heddle train --run exp-7 --split rollout --json")


def run(
    run_id: options.Run = None,
    rollout: Annotated[str | None, typer.Option(help="Only this rollout.")] = None,
    split: Annotated[str, typer.Option(help="Held out: group, task, rollout or time.")] = "group",
    epochs: Annotated[int, typer.Option(help="At most.", min=1)] = 60,
    device: Annotated[str, typer.Option(help="Where to fit: cpu or cuda.")] = "cpu",
    seed: options.Seed = 0,
    collector: options.Collector = None,
    data: options.Data = None,
    json: options.Json = False,
) -> None:
    """Train a length predictor from the store.

    It is compared with group history on held-out groups and kept; `heddle promote` puts it live.
    """
    from rich.console import Console

    from heddle.app import show
    from heddle.app.commands.connect import asker, recorded, show_gate
    from heddle.app.errors import fail
    from heddle.app.settings import load
    from heddle.models.registry import Registry
    from heddle.models.train import Args
    from heddle.models.train import run as train

    if split not in ("group", "task", "rollout", "time"):
        fail(f"--split {split!r} is unknown; choose one of group, task, rollout, time")
    if device not in ("cpu", "cuda"):
        fail(f"--device {device!r} is unknown; choose cpu or cuda")
    settings = load({"collector": collector, "data": data})
    dataset = recorded(settings.query_url, run_id, rollout)
    args = Args(seed=seed, epochs=epochs, split=split, device=device)
    console = Console(stderr=True) if json else show.OUT
    result = train(dataset, args, Registry(settings.data / "predictors"), console, asker())
    if json:
        show.as_json(_told(result))
        return
    show_gate(result.verdict.table.to_dicts())
    if result.verdict.accepted:
        show.OUT.print(f"put it live with: heddle promote {result.version.version}")


def _told(result: TrainResult) -> dict[str, Any]:
    return {
        "version": result.version.version,
        "accepted": result.verdict.accepted,
        "because": result.verdict.because,
        "train_s": result.train_s,
        "folder": result.folder,
    }
