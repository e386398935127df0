"""How good is the length predictor, how near to the best that anybody could do, and how fast?

Generated workloads with an oracle's ceiling; with `--traces DIR` the real sets too. Times are CPU
seconds, which a busy machine stretches less than its wall clock.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

import polars as pl

from heddle.app.bench import predict_sets as sets
from heddle.app.bench.figures import Figure, Say
from heddle.app.bench.predict_ceiling import by_blocks, oracle_of, parts_of, siblings_of
from heddle.app.bench.predict_pairs import more_is_known
from heddle.app.bench.predict_planning import planned
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

PRESETS: Final = ("coding", "search", "math")
GROUPS: Final = {"coding": 160, "search": 352, "math": 1120}
"""About ROWS step rows each, in the generator's blocks of 16: as much as a training set is asked to
hold. On a third of it the network learns less of math (lab-log.md), and after 8 steps of math few
are left: 231 trajectories of 96 groups, 2,800 of 1,120. The first groups are always the same."""
FEW_GROUPS: Final = 32
ROWS: Final = 100_000
BEST_APART: Final = {0: 0.42, 4: 0.44}
"""Spearman of the best that was fitted to kv_cache_tester before, boosted trees, by k."""
ASKED: Final = (1, 512)
TIMES: Final = 30


def run(*, quick: bool, say: Say, traces: Path | None = None) -> dict[str, Figure]:
    """Everything; --quick is one preset on a third of the groups and a tenth of the rows."""
    figures: dict[str, Figure] = {}
    for preset in PRESETS[2:] if quick else PRESETS:
        figures |= _generated(preset, FEW_GROUPS if quick else GROUPS[preset], say)
    figures |= _speed(ROWS // 10 if quick else ROWS, say)
    if traces is not None:
        figures |= _real(traces, sets.REAL[:1] if quick else sets.REAL, say)
    return figures


def _generated(preset: str, groups: int, say: Say) -> dict[str, Figure]:
    found = sets.generated(preset, groups)
    rows = found.fitted.rows
    oracle, siblings = oracle_of(preset, groups, rows), siblings_of(preset, rows)
    judged = {k: at for k in sets.KS if len(at := found.at(k)) >= sets.FEWEST}
    parts = {k: parts_of(found, (oracle, siblings), at) for k, at in judged.items()}
    for k, at in judged.items():
        said = by_blocks(found, (oracle, siblings), at)
        say(f"{preset} k={k} n={len(at)}: {parts[k].told}{said}")
    late = [k for k in judged if k >= 2]
    worst = min(late, key=lambda k: parts[k].spearman)
    who = "the learned one" if found.accepted else "group history, which the gate kept"
    note = f"worst of k = {', '.join(map(str, late))}; {who}; {groups} groups of 16"
    at_worst = f"{note}; k = {worst}, {len(judged[worst])} trajectories: {parts[worst].told}"
    recall20 = min(parts[k].recall20 for k in late)
    off = max(abs(part.covered - 0.8) for part in parts.values())
    return {
        f"{preset}_spearman_of_oracle": Figure(parts[worst].spearman, "x", 0.9, "higher", at_worst),
        f"{preset}_recall20_of_oracle": Figure(recall20, "x", 0.9, "higher", note),
        f"{preset}_coverage_off": Figure(off, "", 0.05, "lower", "of 0.8, the worst step"),
        **more_is_known(preset, found, oracle),
        **planned(preset, found, say),
    }


def _speed(rows: int, say: Say) -> dict[str, Figure]:
    specs = generate("search", groups=max(rows // 250, 8))
    dataset = ask(sets.steps_of(specs))
    say(f"training on {dataset.rows.height:,} rows")
    with tempfile.TemporaryDirectory() as folder:
        registry = Registry(folder)
        train_s = _cpu_s(lambda: train(dataset, Args(), registry))
        promoted = _promoted(registry, _queries(dataset.rows, 1)[0])
    scaled = train_s * ROWS / dataset.rows.height
    note = f"CPU, one thread; {dataset.rows.height:,} rows took {train_s:.1f} s"
    figures = {"train_100k_rows_s": Figure(scaled, "s", 60.0, "lower", note), **promoted}
    names = dataset.rows["group_id"].unique().sort()[:16].to_list()
    few = dataset.rows.filter(pl.col("group_id").is_in(names))
    net = crossfit(few, "group", 5, Args(epochs=2).fit(), lambda _part, _said: None).weights
    served = Learned(net, _lived(history_of(dataset.rows), dataset.rows), "bench")
    for count, target_ms in zip(ASKED, (0.3, 5.0), strict=True):
        asked = _queries(dataset.rows, count)
        served.predict_many(asked)
        times = [_cpu_s(lambda asked=asked: served.predict_many(asked)) for _ in range(TIMES)]
        figures[f"infer_{count}_ms"] = Figure(
            median(times) * 1e3, "ms", target_ms, "lower", "CPU, median; every sibling still runs"
        )
    return figures


def _promoted(registry: Registry, asked: Query) -> dict[str, Figure]:
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


def _real(folder: Path, names: tuple[str, ...], say: Say) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for name in names:
        found = sets.real(folder, name)
        by_k = {k: sets.against_siblings(found, k) for k in (0, 4)}
        who = "learned" if found.accepted else "group history"
        note = f"{who}; " + ", ".join(f"k = {k}: {gain:+.3f}" for k, gain in by_k.items())
        say(f"{name}: {note}")
        figures[f"{name}_over_siblings"] = Figure(min(by_k.values()), "", -0.02, "higher", note)
    if len(names) > 1:
        figures |= _families(folder) | _apart(folder)
    return figures


def _families(folder: Path) -> dict[str, Figure]:
    """Recall of the longest fifth where no network saw the trajectory's task family."""
    found = sets.families(folder)
    figures: dict[str, Figure] = {}
    for k in (0, 4):
        at = found.at(k)
        ours, history = (
            sets.ranks(told[at], found.truth[at])[1]
            for told in (found.fitted.learned, found.fitted.history)
        )
        note = f"the learned one, families held out; group history {history:.3f}"
        figures[f"family_recall20_k{k}"] = Figure(ours, "", history, "higher", note)
    return figures


def _apart(folder: Path) -> dict[str, Figure]:
    """Spearman where hardly any task was sampled twice: no siblings, and the longest were cut."""
    found = sets.real(folder, sets.APART)
    figures: dict[str, Figure] = {}
    who = "the learned one" if found.accepted else "group history"
    for k, best in BEST_APART.items():
        at = found.at(k)
        told = (found.chosen[at], found.fitted.history[at], sets.prompt_only(found)[at])
        ours, history, prompt = (sets.ranks(one, found.truth[at])[0] for one in told)
        note = (
            f"{who}; group history {history:.3f}, prompt only {prompt:.3f}; target: boosted trees"
        )
        figures[f"{sets.APART}_k{k}"] = Figure(ours, "", best, "higher", note)
    return figures


def _cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
