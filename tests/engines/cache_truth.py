"""Does the emulated engine's prefix cache behave as a genuine one's when trajectories sit in tools?

By hand, about three minutes on two quiet cores:

    python tests/engines/cache_truth.py --sweep .heddle/profiles/tiny-qwen3/v0001.sweep

Starts a genuine SGLang and the emulated one with the timings in that file, replays the same
rollouts on both and prints a table of docs/results/cache-truth.md. With --host both have HiCache's
host tier of so many times the GPU's room, and what came back from the host is told apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Any

from engine_processes import FLAGS, HEDDLE, HERE, ORDER_ONLY, SGLANG, free_port, running
from replayed_rollouts import Outcome, Plan, machine_line, plans, replay

from heddle.controller.emulator.sweep import load_sweep
from heddle.controller.emulator.truth import TruthParams

KV, SLOTS, SEED = 4096, 16, 5
WORKING_SETS = (0.5, 1.0, 2.0, 3.0)
TOOL_S = {"short": 0.05, "long": 1.0}
KINDS = ("genuine", "emulated")
HOST = (
    "--enable-hierarchical-cache", "--hicache-io-backend=direct",
    "--hicache-mem-layout=layer_first", "--hicache-write-policy=write_through",
)  # fmt: skip


def rollout(share: float, tool_s: float) -> list[Plan]:
    """Trajectories whose contexts, halfway through, together are that many times the KV room."""
    shape: dict[str, Any] = {
        "prompt": (100, 200), "steps": (2, 4), "output": (12, 36), "observation": (60, 140),
    }  # fmt: skip
    many = plans(SEED, 200, tool_s=tool_s, **shape)
    total, chosen = 0, list[Plan]()
    for plan in many:
        if total >= share * KV:
            break
        chosen.append(plan)
        total += plan.halfway_tokens
    return chosen


def settings() -> list[tuple[float, str, bool]]:
    return [
        (share, gap, first) for gap in TOOL_S for first in (False, True) for share in WORKING_SETS
    ]


def start(exits: ExitStack, folder: Path, sweep: str, *, host: float | None) -> dict[str, str]:
    """Kind -> address of an engine that answers."""
    ports = {kind: free_port() for kind in KINDS}
    urls = {kind: f"http://127.0.0.1:{port}" for kind, port in ports.items()}
    genuine = [*FLAGS, *ORDER_ONLY, f"--max-running-requests={SLOTS}"]
    emulated = ["--system", sweep, "--kv-tokens", str(KV), "--max-running", str(SLOTS)]
    env = {"TOKENS": str(KV)}
    if host is not None:
        genuine += [*HOST, f"--hicache-ratio={host:g}"]
        emulated += ["--hicache-ratio", f"{host:g}"]
        env["IDLE"] = ""
    commands = {
        "genuine": [HERE / "serve.sh", SGLANG, str(ports["genuine"]), *genuine],
        "emulated": [HEDDLE, "engine", "--port", str(ports["emulated"]), *emulated],
    }
    for kind, command in commands.items():
        log = folder / f"{kind}.log"
        exits.enter_context(running(command, f"{urls[kind]}/health", log, **env))
    return urls


def row(setting: tuple[float, str, bool], found: dict[str, Outcome]) -> dict[str, Any]:
    share, gap, first = setting
    said: dict[str, Any] = {
        "working_set": share, "tools": gap, "order": "in-flight first" if first else "fcfs",
    }  # fmt: skip
    for kind, outcome in found.items():
        said[kind] = {
            "hit": round(outcome.hit_rate * 100, 1),
            "retractions": outcome.retractions,
            "makespan_s": round(outcome.makespan_s, 2),
            "host": round(outcome.host_rate * 100, 1),
        }
    return said


def table(rows: list[dict[str, Any]], *, host: bool) -> str:
    heads = ["hit %", *(["from the host %"] if host else []), "retractions", "makespan s"]
    head = ["working set", "tools", "order", *(f"{k}: {h}" for k in KINDS for h in heads)]
    lines = [head, ["---", "---", "---", *["---:"] * (len(heads) * len(KINDS))]]
    for said in rows:
        line = [f"{said['working_set']:.1f} x KV", said["tools"], said["order"]]
        for one in (said[kind] for kind in KINDS):
            line += [f"{one['hit']:.1f}", *([f"{one['host']:.1f}"] if host else [])]
            line += [str(one["retractions"]), f"{one['makespan_s']:.2f}"]
        lines.append(line)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def summary(rows: list[dict[str, Any]]) -> str:
    """How far apart the two kinds were at worst, and in what."""
    hit, host = (
        max(abs(said["genuine"][what] - said["emulated"][what]) for said in rows)
        for what in ("hit", "host")
    )
    work = blake2b(repr(rollout(3.0, 1.0)).encode(), digest_size=6).hexdigest()
    return (
        f"Largest difference of hit rates {hit:.1f} points, of what came from the host "
        f"{host:.1f}. Seed {SEED}, workload {work}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", required=True)
    parser.add_argument("--host", type=float, metavar="RATIO")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    # Told to stop, it stops its engines too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as exits:
        urls = start(exits, Path(folder), asked.sweep, host=asked.host)
        for setting in settings():
            share, gap, first = setting
            todo = rollout(share, TOOL_S[gap])
            found = {
                kind: asyncio.run(replay([url], todo, returning_first=first))
                for kind, url in urls.items()
            }
            rows.append(row(setting, found))
            sys.stderr.write(f"{json.dumps(rows[-1])}\n")
    if asked.json:
        sys.stdout.write(json.dumps(rows, indent=1))
        return
    sys.stdout.write(f"{table(rows, host=asked.host is not None)}\n\n{summary(rows)} ")
    truth = load_sweep(asked.sweep, TruthParams()).hash
    sys.stdout.write(f"Truth {truth}.\n{machine_line()}\n")


if __name__ == "__main__":
    main()
