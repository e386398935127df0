"""Can recorded rollouts teach a better guess of the remaining tokens than group history makes?

Read top to bottom: check the data, fit one network a fold, predict every held-out row, compare with
history and with what serves, keep the ensemble and its card in the registry. Nothing is promoted
here. Seeds are fixed; 100,000 rows take well under a minute on two cores.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from heddle.models import crossfit as cf
from heddle.models.candidates import guesses, standing
from heddle.models.card import write_card
from heddle.models.dataset import ROLLOUT, Dataset, rollouts_of
from heddle.models.errors import ArtifactError, DatasetError, ModelsError, RegistryError
from heddle.models.evaluate import OVERALL, Held, compare
from heddle.models.folds import Split
from heddle.models.gate import Verdict, judge
from heddle.models.length import FitArgs
from heddle.models.registry import Draft, Registry, Version
from heddle.models.serve import log_quantiles

LEAST_TRAJECTORIES = 40
"""Below this a fold holds eight trajectories and no comparison can be told from chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Args:
    """How to train; the defaults are what `heddle train` runs."""

    seed: int = 0
    """Of folds, first weights and hidden siblings; printed with the result."""
    hidden: int = 16
    """The one dial: units of the tanh layer; 16 are enough for 45,000 rows of real traces."""
    epochs: int = 60
    """At most; training stops `patience` epochs after the best on the stopping groups."""
    patience: int = 6
    """Epochs without improvement before stopping."""
    learning_rate: float = 3e-3
    """Of AdamW."""
    weight_decay: float = 1e-2
    """Of AdamW; pulls towards group history."""
    folds: int = 5
    """Networks, each judged on the fold it never saw."""
    split: Split = "group"
    """What stays together in a fold: group, task (family held out), rollout, or rollouts by time,
    taught by earlier ones alone."""
    rounds: int = 200
    """Of the bootstrap over groups behind every interval."""
    threads: int = 1
    """CPU threads for torch; networks this small run ten times slower on two busy ones."""
    device: str = "cpu"
    """Where to fit: cpu, or cuda where there is one."""

    def fit(self) -> FitArgs:
        """What one network needs of them."""
        return FitArgs(
            self.seed,
            self.epochs,
            self.hidden,
            self.patience,
            self.learning_rate,
            self.weight_decay,
            self.device,
        )


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The saved version, the gate's verdict with its table, and what it took."""

    version: Version
    verdict: Verdict
    train_s: float
    folder: str

    @property
    def last_line(self) -> str:
        """The metric, what it is compared with, and where it saved."""
        cells = self.verdict.table.filter(
            pl.col("metric") == "spearman", pl.col("k") == OVERALL
        ).to_dicts()
        if not cells:
            return f"nothing could be compared -> {self.folder}"
        cell = cells[0]
        return (
            f"Spearman of remaining tokens {cell['candidate']:.3f} "
            f"({cell['against']} {cell['baseline']:.3f}), {self.verdict.because.split(':')[0]} "
            f"-> {self.folder}"
        )


def train(
    dataset: Dataset,
    args: Args,
    registry: Registry,
    progress: cf.Progress | None = None,
    who: str = "",
) -> TrainResult:
    """Fit, judge and save one version for `who`; `progress` hears the part done and a sentence."""
    began = time.monotonic()
    report = progress or (lambda _part, _sentence: None)
    if dataset.trajectories < LEAST_TRAJECTORIES:
        message = (
            f"{dataset.trajectories} finished trajectories are too few to judge a predictor; "
            f"record at least {LEAST_TRAJECTORIES}"
        )
        raise DatasetError(message)
    if dataset.rows["truncated"].all():
        message = (
            f"all {dataset.trajectories} trajectories were cut off, so nobody knows how long any "
            "of them gets; record some under higher limits"
        )
        raise DatasetError(message)
    if args.device != "cpu" and not torch.cuda.is_available():
        message = (
            f"torch sees no GPU to fit on here (device {args.device!r}); leave the device at cpu, "
            "or install torch with CUDA"
        )
        raise ModelsError(message)
    report(0.0, f"{dataset.rows.height:,} rows of {dataset.trajectories:,} trajectories")
    with _torch_threads(args.threads):
        fitted = cf.crossfit(dataset.rows, args.split, args.folds, args.fit(), report)
    verdict = judge(comparisons(fitted, registry, args))
    others = guesses(fitted.rows, fitted.fold) | {"group history": fitted.history}
    table = standing(others | {"learned": fitted.learned}, fitted.rows)
    draft = Draft(
        fitted.weights,
        dataset.fingerprint,
        verdict.accepted,
        verdict.because,
        overall(verdict) | fitted.outlook,
        _facts(dataset, args),
        verdict.table.to_dicts(),
    )
    version = registry.save(draft, write_card(draft, verdict.table, table), who)
    report(1.0, verdict.because)
    place = str(registry.folder / "versions" / version.version)
    return TrainResult(version, verdict, time.monotonic() - began, place)


def comparisons(fitted: cf.Crossfit, registry: Registry, args: Args) -> dict[str, pl.DataFrame]:
    """Against group history, and against the version that serves where one does.

    That one on rollouts it has not learned from, where enough of them are new: it knows the rest by
    heart, and every retraining would lose to it.
    """
    everything = np.ones(fitted.rows.height, dtype=np.bool_)
    rivals = {"group history": (fitted.history, everything)}
    if (serving := registry.active()) is not None:
        # A broken one does not serve either: history does, and is compared with already.
        with suppress(ArtifactError, RegistryError):
            told = log_quantiles(registry.weights(serving), fitted.x)
            new = _unseen(fitted.rows, registry.get(serving).trained)
            rivals[serving] = told, new if _held(fitted.rows, new).steps() else everything
    return {
        name: compare(
            fitted.learned[of], told[of], _held(fitted.rows, of), rounds=args.rounds, seed=args.seed
        )
        for name, (told, of) in rivals.items()
    }


def _unseen(rows: pl.DataFrame, trained: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Rows of rollouts that a version was not trained on."""
    known: Any = trained.get("rollouts")
    known = known if isinstance(known, list) else []
    return rows.select(~ROLLOUT.is_in([str(one) for one in known])).to_series().to_numpy()


def _held(rows: pl.DataFrame, of: NDArray[np.bool_]) -> Held:
    return Held.from_rows(rows.filter(pl.Series(of)))


def overall(verdict: Verdict) -> dict[str, float]:
    """The candidate's held-out means over the steps, by metric."""
    rows = verdict.table.filter(pl.col("k") == OVERALL).unique("metric", maintain_order=True)
    return dict(zip(rows["metric"].to_list(), rows["candidate"].to_list(), strict=True))


def run(
    dataset: Dataset, args: Args, registry: Registry, console: Console, who: str = ""
) -> TrainResult:
    """Train with a progress bar; the last line says how good it is and where it was saved."""
    console.print(f"seed {args.seed}, data {dataset.fingerprint}, split by {args.split}")
    if dataset.ungrouped:
        console.print(
            f"{dataset.ungrouped:,} of {dataset.trajectories:,} trajectories name no group: "
            "each counts as a group of its own"
        )
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("training", total=1.0)
        result = train(
            dataset,
            args,
            registry,
            lambda part, sentence: bar.update(task, completed=part, description=sentence),
            who,
        )
    console.print(result.verdict.because, highlight=False)
    console.print(result.last_line, highlight=False, soft_wrap=True)
    return result


def _facts(dataset: Dataset, args: Args) -> dict[str, Any]:
    rows = dataset.rows
    return {
        "args": asdict(args),
        "rows": rows.height,
        "trajectories": dataset.trajectories,
        "groups": rows["group_id"].n_unique(),
        "ungrouped": dataset.ungrouped,
        "tasks": sorted(rows["task"].drop_nulls().unique().to_list()),
        "runs": sorted(rows["run_id"].drop_nulls().unique().to_list()),
        "rollouts": rollouts_of(rows),
        "truncated_share": int(rows["truncated"].sum()) / max(rows.height, 1),
    }


@contextmanager
def _torch_threads(threads: int) -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
