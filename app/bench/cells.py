"""Which rollouts does the policy study replay, under what, and how are they spread over two cores?

Nine cells (three models, three workloads) and more; a job is one rollout under one policy. Jobs are
independent: a process pool plays them, and a journal lets a long study go on where it stopped.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from heddle.app.replay import Cell, generated, play

MODELS: Final = {"Qwen3-8B": 1, "Qwen3-14B": 1, "Qwen3-32B": 2}
"""The paper's degree for its baselines."""
WORKLOADS: Final = ("coding", "search", "math")
DEGREES: Final = (2, 4, 8)
"""Of which B is the best in hindsight, beside the paper's."""
SIGMAS: Final = (0.0, 0.3, 0.6, 1.0)
FEW: Final = (0.0, 0.6)
"""What seeds after the first are foreseen with: all of it takes a quarter of an hour more."""
SAMPLES: Final = 16
DENSITY: Final = 100
"""Trajectories for each of the baselines' workers, as in the paper. With a quarter of them KV is
hardly ever short, and nothing is to be won."""
CORES: Final = 2
STICKY: Final = "verl/allocation=fixed-{}"
SLIME: Final = "slime/allocation=fixed-{}"
OURS: Final = "heddle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One rollout under one policy."""

    model: str
    workload: str
    gpus: int
    groups: int
    seed: int
    policy: str
    error: float | None = None
    claimed: float | None = None
    wrong: bool = False
    slow: bool = False
    """Worker w0's iterations take half as long again."""

    @property
    def key(self) -> str:
        """Names it in a journal."""
        return json.dumps(asdict(self), sort_keys=True)


def groups_of(model: str, gpus: int) -> int:
    """So that every worker of the baselines' degree gets DENSITY trajectories."""
    return max(1, round(DENSITY * gpus / MODELS[model] / SAMPLES))


def grid(gpus: int, seeds: Iterable[int], *, foreseen: bool = True) -> Iterator[Job]:
    """The nine cells: the baselines, and ours by history and at every quality of prediction."""
    for place, seed in enumerate(seeds):
        sigmas = () if not foreseen else FEW if place else SIGMAS
        for model, degree in MODELS.items():
            for workload in WORKLOADS:
                base = Job(
                    model=model, workload=workload, gpus=gpus, groups=groups_of(model, gpus),
                    seed=seed, policy=STICKY.format(degree),
                )  # fmt: skip
                yield base
                yield replace(base, policy=SLIME.format(degree))
                for other in DEGREES:
                    if other != degree and other <= gpus:
                        yield replace(base, policy=STICKY.format(other))
                yield replace(base, policy=OURS)
                for sigma in sigmas:
                    yield replace(base, policy=OURS, error=sigma)


def perturbations(gpus: int, seed: int) -> Iterator[Job]:
    """Ours with every belief wrong at once, and everybody with one engine slow."""
    for job in grid(gpus, [seed]):
        if job.policy == OURS and job.error == 1.0:
            yield replace(job, claimed=0.3, wrong=True)
        elif job.policy.startswith("verl") or (job.policy == OURS and job.error is None):
            yield replace(job, slow=True)


def prefill_heavy(gpus: int, seeds: Iterable[int], model: str = "Qwen3-14B") -> Iterator[Job]:
    """Long observations: nothing lost to B there either."""
    for seed in seeds:
        for policy in (*(STICKY.format(d) for d in (1, *DEGREES)), OURS):
            yield Job(
                model=model, workload="prefill-heavy", gpus=gpus,
                groups=max(1, groups_of(model, gpus) // 2), seed=seed, policy=policy,
            )  # fmt: skip


def played(job: Job) -> dict[str, Any]:
    """Its row."""
    cell = replace(
        _cell(job.workload, job.seed, job.groups, job.gpus, job.model),
        error=job.error, claimed=job.claimed, wrong=job.wrong,
    )  # fmt: skip
    if job.slow:
        # Half of what an iteration of a full engine takes, about 25 ms.
        cell = replace(cell, slow_s={"w0": 0.0125})
    return {**play(cell, job.policy), "job": asdict(job)}


@lru_cache(maxsize=1)
def _cell(workload: str, seed: int, groups: int, gpus: int, model: str) -> Cell:
    return generated(workload, seed=seed, groups=groups, gpus=gpus, model=model)


def play_all(
    jobs: Iterable[Job], done: Callable[[dict[str, Any]], None], journal: Path | None = None
) -> list[dict[str, Any]]:
    """Every row, in the order of the jobs; those in the journal are not played again."""
    wanted = list(dict.fromkeys(jobs))
    rows = _journalled(journal)
    left = [job for job in wanted if job.key not in rows]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(CORES, mp_context=context) as pool:
        pending = {pool.submit(played, job): job for job in left}
        for future in as_completed(pending):
            row = rows[pending[future].key] = future.result()
            done(row)
            if journal is not None:
                with journal.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    return [rows[job.key] for job in wanted]


def _journalled(journal: Path | None) -> dict[str, dict[str, Any]]:
    if journal is None or not journal.exists():
        return {}
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    return {json.dumps(row["job"], sort_keys=True): row for row in rows}
