"""Rollouts with a known law, as the collector's frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import polars as pl
import pytest

from heddle.models.dataset import Dataset, from_collector

TOOLS = {
    "run_id": pl.String,
    "rollout_id": pl.String,
    "group_id": pl.String,
    "trajectory_id": pl.String,
    "step_index": pl.Int64,
    "tool_name": pl.String,
    "start_ns": pl.Int64,
    "duration_s": pl.Float64,
    "error_type": pl.String,
}
Frames = tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _frames(
    *, groups: int = 40, samples: int = 6, telling: bool = True, steps: int = 5, seed: int = 0
) -> Frames:
    """Log totals vary between groups (0.5) and within (0.6). `telling`: the steps share the total
    nearly evenly, so one step tells how long it gets; else the total is dealt out at random."""
    rng = np.random.default_rng(seed)
    trajectories, stepped, tools = [], [], []
    for g in range(groups):
        mean = rng.normal(7.0, 0.5)
        for s in range(samples):
            total = float(np.exp(rng.normal(mean, 0.6)))
            count = steps if telling else int(rng.integers(2, 9))
            shares = rng.lognormal(0.0, 0.1 if telling else 1.0, count)
            outputs = np.maximum(total * shares / shares.sum(), 1).astype(int)
            whose = {
                "run_id": "run",
                "rollout_id": f"r{s % 3}",
                "group_id": f"g{g}",
                "trajectory_id": f"t{g}-{s}",
            }
            trajectories.append(
                whose
                | {"task": "toy", "state": "finished", "truncated": None}
                | {"output_tokens": int(outputs.sum())}
            )
            context = 200
            for k, output in enumerate(outputs.tolist()):
                at = (s * 1000 + k) * 10
                stepped.append(
                    whose
                    | {"step_index": k, "start_ns": at, "input_tokens": context}
                    | {"output_tokens": output}
                )
                context += output + 50
                if k < count - 1:
                    tools.append(
                        whose
                        | {"step_index": k, "tool_name": "bash", "start_ns": at + 5}
                        | {"duration_s": float(rng.exponential(2.0)), "error_type": None}
                    )
    schema = {"truncated": pl.Boolean, "error_type": pl.String}
    made = [pl.DataFrame(trajectories), pl.DataFrame(stepped), pl.DataFrame(tools, TOOLS)]
    cast = [f.cast({c: t for c, t in schema.items() if c in f.columns}) for f in made]
    return cast[0], cast[1], cast[2]


@pytest.fixture(scope="session")
def frames() -> Callable[..., Frames]:
    return _frames


@pytest.fixture(scope="session")
def recorded() -> Callable[..., Dataset]:
    return lambda **law: from_collector(*_frames(**law))
