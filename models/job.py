"""Train or evaluate in a process of its own: what is asked on stdin, what happens on stdout.

The controller starts it (`python -m heddle.models.job`) so that its own process never imports
torch. One JSON object in; out comes one a line: `progress` and a sentence, and last either
`result` or `error`. It runs at a lower priority than whoever asked.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import polars as pl
import polars.selectors as cs

from heddle.collector.client import CollectorClient
from heddle.collector.errors import CollectorError
from heddle.models.dataset import Dataset, from_store
from heddle.models.errors import ModelsError
from heddle.models.folds import Split
from heddle.models.registry import Registry

NICE: Final = 10
READ_S: Final = 300.0
"""Reading 100,000 steps takes seconds; a collector that is busy takes longer."""
Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One job; `registry` is a folder, `collector` where it answers queries."""

    kind: Literal["train", "evaluate"]
    collector: str
    registry: str
    collector_token: str | None = None
    run: str | None = None
    rollout: str | None = None
    split: Split = "group"
    seed: int = 0
    epochs: int = 60
    version: str | None = None
    """To evaluate; None: the one that serves."""
    who: str = ""
    """Who asked, for the registry's audit."""


def work(asked: Asked, tell: Tell) -> dict[str, Any]:
    """Do what is asked; the result as `result` says it."""
    tell({"progress": 0.0, "sentence": "reading the store"})
    with CollectorClient(asked.collector, token=asked.collector_token, timeout_s=READ_S) as client:
        dataset = from_store(client, asked.run, asked.rollout)
    return (_train if asked.kind == "train" else _evaluate)(asked, dataset, tell)


def _train(asked: Asked, dataset: Dataset, tell: Tell) -> dict[str, Any]:
    from heddle.models.train import Args, train  # torch: seconds of imports, and maybe not there

    args = Args(seed=asked.seed, epochs=asked.epochs, split=asked.split)
    done = train(
        dataset,
        args,
        Registry(asked.registry),
        lambda part, sentence: tell({"progress": part, "sentence": sentence}),
        asked.who,
    )
    verdict = done.verdict
    return {
        "version": done.version.version,
        "accepted": verdict.accepted,
        "sentence": verdict.because,
        "table": _rows(verdict.table),
    }


def _evaluate(asked: Asked, dataset: Dataset, tell: Tell) -> dict[str, Any]:
    from heddle.models.review import review

    tell({"progress": 0.2, "sentence": f"asking about {dataset.rows.height:,} rows"})
    found = review(dataset, Registry(asked.registry), asked.version)
    return {
        "version": found.version,
        "accepted": found.verdict.accepted,
        "sentence": found.sentence,
        "table": _rows(found.verdict.table),
    }


def _rows(table: pl.DataFrame) -> list[dict[str, Any]]:
    return table.with_columns(cs.float().fill_nan(None)).to_dicts()


def main() -> int:
    """Read, work, tell."""
    os.nice(NICE)
    # Whatever a library prints goes to stderr: stdout is the protocol.
    out, sys.stdout = sys.stdout, sys.stderr

    def tell(said: dict[str, Any]) -> None:
        print(json.dumps(said), file=out, flush=True)

    try:
        result = work(Asked(**json.load(sys.stdin)), tell)
    except (ModelsError, CollectorError) as error:
        tell({"error": str(error)})
        return 2
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        tell({"error": "training needs torch here: pip install 'heddle-rollout[train]'"})
        return 2
    tell({"result": result})
    return 0


if __name__ == "__main__":
    sys.exit(main())
