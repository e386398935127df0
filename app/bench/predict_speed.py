"""How long do training, an answer and a promotion of the length predictor take?

Training and answers in CPU seconds, which a busy machine stretches less than its wall clock.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Final

import polars as pl
import torch

from heddle.app.bench.figures import Figure, Say
from heddle.app.bench.predict_sets import steps_of
from heddle.controller.beliefs import Beliefs
from heddle.controller.emulator.workload import generate
from heddle.controller.journal import Journal
from heddle.controller.predictors import Predictors
from heddle.controller.wire_predictor import PredictorChoice, Rollback
from heddle.models.crossfit import crossfit
from heddle.models.dataset import ask
from heddle.models.history import GroupHistory
from heddle.models.priors import history_of
from heddle.models.registry import Registry
from heddle.models.serve import Learned
from heddle.models.train import Args, train
from heddle.models.types import Query

ROWS: Final = 100_000
"""What training is timed on, and about what a workload is judged on."""
ASKED: Final = (1, 512)
TIMES: Final = 30
REST_S: Final = 0.5
"""Before answers are timed: a second thread (BLAS or OpenMP) that a training woke spins on for some
60 ms, and what it burns is the process's CPU time too. On a quiet machine it made 6.5 ms of 2.5."""


def speed(rows: int, say: Say) -> dict[str, Figure]:
    """On so many rows of the generated search workload."""
    torch.set_num_threads(1)
    specs = generate("search", groups=max(rows // 250, 8))
    dataset = ask(steps_of(specs))
    say(f"training on {dataset.rows.height:,} rows")
    with tempfile.TemporaryDirectory() as folder:
        registry = Registry(folder)
        train_s = _cpu_s(lambda: train(dataset, Args(), registry))
        promoted = promotions(registry, _queries(dataset.rows, 1)[0])
    scaled = train_s * ROWS / dataset.rows.height
    note = f"CPU, one thread; {dataset.rows.height:,} rows took {train_s:.1f} s"
    figures = {"train_100k_rows_s": Figure(scaled, "s", 60.0, "lower", note), **promoted}
    names = dataset.rows["group_id"].unique().sort()[:16].to_list()
    few = dataset.rows.filter(pl.col("group_id").is_in(names))
    net = crossfit(few, "group", 5, Args(epochs=2).fit(), lambda _part, _said: None).weights
    served = Learned(net, _lived(history_of(dataset.rows), dataset.rows), "bench")
    for count, target_ms in zip(ASKED, (0.3, 5.0), strict=True):
        asked = _queries(dataset.rows, count)
        time.sleep(REST_S)
        # As many again are not counted: a core that has rested is slow to come back.
        both = [_cpu_s(lambda asked=asked: served.predict_many(asked)) for _ in range(2 * TIMES)]
        times = both[TIMES:]
        figures[f"infer_{count}_ms"] = Figure(
            median(times) * 1e3, "ms", target_ms, "lower", "CPU, median; every sibling still runs"
        )
    return figures


def promotions(registry: Registry, asked: Query) -> dict[str, Figure]:
    """As the controller does it, there and back: over when the next prediction is of the other."""
    beliefs = Beliefs(registry=registry)
    served = Predictors(registry, Journal(None), beliefs)
    choice = PredictorChoice(version=registry.list()[0].version, who="bench", force=True)
    took: list[float] = []
    for deed in [lambda: served.promote(choice), lambda: served.rollback(Rollback())] * TIMES:
        began = time.perf_counter()
        version = deed().version
        predictor = beliefs.learned(asked.run)
        predictor.predict(asked)
        took.append(time.perf_counter() - began)
        assert predictor.version == version
    note = f"the slowest of {len(took)}, there and back in turn, until the next prediction; wall"
    return {"promote_s": Figure(max(took), "s", 1.0, "lower", note)}


def _lived(history: GroupHistory, rows: pl.DataFrame) -> GroupHistory:
    """With fifteen running siblings around each, the dearest that a rollout asks."""
    for row in rows.filter(pl.col("steps_so_far") == 1).iter_rows(named=True):
        history.survives(
            row["group_id"], row["trajectory_id"], row["tokens_so_far"], task=row["task"]
        )
    return history


def _queries(rows: pl.DataFrame, count: int) -> list[Query]:
    some = rows.filter(pl.col("steps_so_far") == 2).head(count)
    return [
        Query(
            group=row["group_id"],
            run=row["run_id"],
            task=row["task"],
            trajectory=row["trajectory_id"],
            prompt_tokens=row["prompt_tokens"],
            context_tokens=row["context_tokens"],
            tokens_so_far=row["tokens_so_far"],
            steps_so_far=row["steps_so_far"],
            last_output_tokens=row["last_output_tokens"],
            max_output_tokens=row["max_output_tokens"],
            last_tool=row["last_tool"],
        )
        for row in some.iter_rows(named=True)
    ]


def _cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
