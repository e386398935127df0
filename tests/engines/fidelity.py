"""How close does a rollout on emulated engines come to the same one on genuine ones?

By hand, on a quiet machine; two genuine engines must already serve:

    python tests/engines/fidelity.py profile URL URL --data DIR
    python tests/engines/fidelity.py compare URL URL --data DIR

`profile` runs `heddle profile` on both at the same time, so that each is measured beside a loaded
neighbour, as it will run. `compare` replays 64 trajectories three times on the genuine engines (the
noise floor) and once on two emulated engines with those timings, and prints the table of
docs/results/fidelity.md.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from hashlib import blake2b
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from engine_processes import HEDDLE, free_port, running
from replayed_rollouts import Outcome, Plan, machine_line, plans, replay

from heddle.controller.emulator.sweep import load_sweep
from heddle.controller.emulator.truth import TruthParams

SEED, TRAJECTORIES, REPEATS = 11, 64, 3
SHAPE: dict[str, Any] = {
    "prompt": (60, 160), "steps": (3, 8), "output": (8, 64), "observation": (20, 60),
    "tool_s": 0.3,
}  # fmt: skip


def workload() -> list[Plan]:
    return plans(SEED, TRAJECTORIES, **SHAPE)


def profile(urls: list[str], data: Path) -> None:
    """Both at once; the sweeps are e0 and e1 under the data folder."""
    words = ["--data", str(data), "--batch", "32", "--no-reload", "--name"]
    started = [
        subprocess.Popen([str(HEDDLE), "profile", url, *words, f"e{number}"])
        for number, url in enumerate(urls)
    ]
    for process in started:
        if process.wait() != 0:
            sys.exit("a profile failed")


def newest(data: Path, number: int) -> str:
    return str(max((data / "profiles" / f"e{number}").glob("v*.sweep")))


def emulated(exits: ExitStack, sweeps: list[str]) -> list[str]:
    urls: list[str] = []
    folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
    for number, sweep in enumerate(sweeps):
        port = free_port()
        urls.append(f"http://127.0.0.1:{port}")
        command = [HEDDLE, "engine", "--port", str(port), "--system", sweep]
        log = folder / f"{number}.log"
        exits.enter_context(running(command, f"{urls[-1]}/health", log))
    return urls


def ranks(values: list[float]) -> np.ndarray[Any, Any]:
    return np.argsort(np.argsort(values))


def correlation(one: Outcome, other: Outcome) -> float:
    """Spearman's, of when each trajectory finished."""
    found = np.corrcoef(ranks(one.finish_order()), ranks(other.finish_order()))
    return float(found[0, 1])


def far(one: float, other: float) -> float:
    return abs(other / one - 1)


def floor(genuine: list[Outcome], of: Any) -> float:
    """The largest difference between two repeats."""
    return max(far(of(a), of(b)) for a, b in combinations(genuine, 2))


def table(genuine: list[Outcome], found: Outcome) -> str:
    """One line a figure: genuine repeats, emulated, noise floor, gap."""
    measures = {
        "makespan s": lambda outcome: outcome.makespan_s,
        "median step latency s": lambda outcome: median(outcome.latencies_s()),
        "mean step latency s": lambda outcome: fmean(outcome.latencies_s()),
    }
    lines = ["| figure | genuine, three times | emulated | noise floor | gap |"]
    lines.append("| --- | --- | ---: | ---: | ---: |")
    for name, of in measures.items():
        each = ", ".join(f"{of(outcome):.2f}" for outcome in genuine)
        gap = of(found) / fmean(of(outcome) for outcome in genuine) - 1
        lines.append(
            f"| {name} | {each} | {of(found):.2f} | {floor(genuine, of):.1%} | {gap:+.1%} |"
        )
    among = min(correlation(a, b) for a, b in combinations(genuine, 2))
    between = fmean(correlation(outcome, found) for outcome in genuine)
    lines.append(
        f"| rank correlation of finish order | {among:.2f} among them | {between:.2f} | | |"
    )
    hits = ", ".join(f"{outcome.hit_rate:.1%}" for outcome in genuine)
    lines.append(f"| cached share of returning steps | {hits} | {found.hit_rate:.1%} | | |")
    return "\n".join(lines)


def compare(urls: list[str], data: Path) -> None:
    todo, sweeps = workload(), [newest(data, number) for number in range(len(urls))]
    asyncio.run(replay(urls, todo[:8], returning_first=False))  # first requests of a process
    genuine = [asyncio.run(replay(urls, todo, returning_first=False)) for _ in range(REPEATS)]
    with ExitStack() as exits:
        found = asyncio.run(replay(emulated(exits, sweeps), todo, returning_first=False))
    truths = ", ".join(load_sweep(sweep, TruthParams()).hash for sweep in sweeps)
    work = blake2b(repr(todo).encode(), digest_size=6).hexdigest()
    sys.stdout.write(f"{table(genuine, found)}\n\nSeed {SEED}, workload {work}, truths {truths}.\n")
    sys.stdout.write(f"{machine_line()}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("profile", "compare"))
    parser.add_argument("urls", nargs=2)
    parser.add_argument("--data", type=Path, required=True)
    asked = parser.parse_args()
    {"profile": profile, "compare": compare}[asked.what](asked.urls, asked.data)


if __name__ == "__main__":
    main()
