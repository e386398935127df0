"""A run of rollouts to look at, made from a seed: frames with exactly the contract's columns.

Plausible rather than simulated: what matters is that every column, state and null occurs, and that
each worker's pieces cover its whole window.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import duckdb
import polars as pl

from heddle.collector import records
from heddle.collector.errors import QueryRefused

RUN = "qwen3-14b-coder"
HOSTILE = "<img src=x onerror=document.title='owned'> **bold** [a](javascript:alert(1)) :red[x] $x$"
START_NS = 1_796_000_000_000_000_000
SECOND = 1_000_000_000
Rows = dict[str, list[dict[str, Any]]]
TABLES = ("trajectories", "steps", "tool_calls", "moves", "partition", "strips", "accounts", "tail")


def frame(query: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Rows with whatever columns they have, the rest null, in the contract's types and order."""
    schema = records.schema(query)
    columns = {name: [row.get(name) for row in rows] for name in schema}
    return pl.DataFrame(columns, schema=schema, strict=False)


class Story:
    """One run: rollouts by preset, every table by (rollout)."""

    def __init__(
        self,
        presets: tuple[str, ...] = ("verl", "slime", "heddle-paper", "heddle"),
        *,
        trajectories: int = 96,
        running: bool = False,
        hostile: bool = False,
        seed: int = 7,
    ) -> None:
        self.rng = random.Random(seed)
        self.hostile = hostile
        self.rows: Rows = {name: [] for name in records.FRAMES}
        for index, preset in enumerate(presets):
            last = index == len(presets) - 1
            self._rollout(index, preset, trajectories, running=running and last)
        self._run()

    def query(self, name: str, **filters: Any) -> pl.DataFrame:
        """As the collector answers: filtered by whatever columns the filter names."""
        rows = self.rows[name]
        for key, column in _FILTERS.items():
            if (asked := filters.get(key)) is not None:
                wanted = asked if isinstance(asked, tuple) else [asked]
                rows = [row for row in rows if row.get(column) in wanted]
        if filters.get("limit") is not None:
            rows = sorted(rows, key=lambda row: row.get("start_ns") or 0)[: int(filters["limit"])]
        return frame(name, rows)

    def page(self, name: str, **filters: Any) -> tuple[pl.DataFrame, int]:
        """With the number of rows without limit."""
        whole = {**filters, "limit": None}
        return self.query(name, **filters), self.query(name, **whole).height

    def pages(self, name: str, *, limit: int = 10_000, **filters: Any) -> Iterator[pl.DataFrame]:
        """All rows by start, some at a time; one empty page where there are none."""
        found = self.query(name, **filters).sort("start_ns", maintain_order=True)
        yield from found.iter_slices(limit) if found.height else [found]

    def tables(self) -> dict[str, dict[str, str]]:
        """As the collector's door for SQL lists them."""
        return {name: dict.fromkeys(records.schema(name), "VARCHAR") for name in TABLES}

    def sql_page(self, text: str) -> tuple[pl.DataFrame, str]:
        """A SELECT over the frames, by DuckDB."""
        with duckdb.connect() as connection:
            for name in ("rollouts", *TABLES):
                connection.register(name, self.query(name))
            try:
                return connection.sql(text).pl(), ""
            except duckdb.Error as error:
                raise QueryRefused(str(error)) from error

    def health(self) -> dict[str, Any]:
        return {"ok": True, "lag_s": 0.12}

    def _run(self) -> None:
        rollouts = self.rows["rollouts"]
        rollouts.reverse()
        self.rows["runs"] = [
            {
                "run_id": RUN,
                "rollouts": len(rollouts),
                "trajectories": len(self.rows["trajectories"]),
                "first_ns": START_NS,
                "last_ns": max((row["start_ns"] for row in rollouts), default=START_NS),
            }
        ]

    def _rollout(self, index: int, preset: str, size: int, *, running: bool) -> None:
        rollout, start = f"rollout-{index + 1}", START_NS + index * 900 * SECOND
        good = {"verl": 1.0, "slime": 0.88, "heddle-paper": 0.74, "heddle": 0.58}.get(preset, 1.0)
        ends = [self._trajectory(rollout, start, one, good) for one in range(size)]
        wall = (max(ends) - start) if ends else 0
        if running and ends:
            wall = int(wall * 0.7)
            self._cut(rollout, start + wall)
        self._workers(rollout, start, wall, good, ends)
        self._sums(rollout, preset, start, wall, running=running)

    def _trajectory(self, rollout: str, start: int, one: int, good: float) -> int:
        name = f"{rollout}-g{one // 8:02d}-s{one % 8}"
        group = f"g{one // 8:02d}"
        begin = at = start + int(self.rng.uniform(0, 4) * SECOND)
        steps = max(1, int(self.rng.lognormvariate(1.6, 0.55) * (1 + (one // 8 % 4) / 4)))
        worker, key = f"w{one % 8}", {"run_id": RUN, "rollout_id": rollout, "trajectory_id": name}
        key |= {"group_id": group, "task": ("coding", "search")[one // 8 % 2]}
        context = self.rng.randrange(900, 2400)
        for step in range(steps):
            worker = self._maybe_move(key, step, at, worker, context)
            at, context = self._step(key, step, at, worker, context, good)
            if step < steps - 1:
                at = self._tool(key, step, at)
        self._trajectory_row(key, one, begin, at, worker)
        return at

    def _maybe_move(
        self, key: dict[str, Any], step: int, at: int, worker: str, context: int
    ) -> str:
        if step == 0 or self.rng.random() > 0.06:
            return worker
        target = f"w{self.rng.randrange(8)}"
        took = int(self.rng.uniform(0.1, 0.9) * SECOND)
        self.rows["moves"].append(
            {
                **key,
                "step_index": step,
                "move_source": worker,
                "move_target": target,
                "move_method": "reprefill",
                "move_tokens": context,
                "move_hit_tokens": 0,
                "hidden_s": took / SECOND,
                "exposed_s": 0.0,
                "because": f"expected finish 41 s before the rest of {worker}",
                "start_ns": at - took,
                "end_ns": at,
            }
        )
        return target

    def _step(
        self, key: dict[str, Any], step: int, at: int, worker: str, context: int, good: float
    ) -> tuple[int, int]:
        out = int(self.rng.lognormvariate(5.9, 0.7))
        held = int(self.rng.expovariate(0.5) * SECOND) if step == 0 else 0
        queue = int(self.rng.expovariate(1 / (3 * good * good)) * SECOND)
        prefill, decode = int(context * 6e-5 * SECOND), int(out * 0.021 * good * SECOND)
        end = at + held + queue + prefill + decode + 4_000_000
        cached = int(context * (0.0 if step == 0 else self.rng.uniform(0.3, 0.98)))
        predicted = self.rng.lognormvariate(7.6, 0.5)
        serial = len(self.rows["steps"])
        self.rows["steps"].append(
            {
                **key,
                "step_index": step,
                "trace_id": f"{serial:032x}",
                "span_id": f"{serial:016x}",
                "worker_id": worker,
                "degree": 1,
                "state": "finished",
                "start_ns": at,
                "end_ns": end,
                "held_ns": held,
                "queue_ns": queue,
                "prefill_ns": prefill,
                "decode_ns": decode,
                "input_tokens": context,
                "output_tokens": out,
                "cached_tokens": cached,
                "retractions": int(self.rng.random() < 0.03),
                "order_rank": self.rng.randrange(30),
                "priority": self.rng.randrange(4),
                "predicted_p10": predicted * 0.4,
                "predicted_p50": predicted,
                "predicted_p90": predicted * 2.3,
                "predictor_version": "group-history",
                "because": f"{worker} finishes it soonest, {predicted:.0f} tokens left expected",
                "finish_reason": "stop",
            }
        )
        return end, context + out + self.rng.randrange(80, 700)

    def _tool(self, key: dict[str, Any], step: int, at: int) -> int:
        names = ("python", "pytest", "search", "bash")
        took = min(self.rng.lognormvariate(0.4, 1.1), 28.0)
        end = at + int(took * SECOND)
        self.rows["tool_calls"].append(
            {
                **key,
                "step_index": step,
                "tool_name": HOSTILE if self.hostile and step == 0 else self.rng.choice(names),
                "state": "finished",
                "start_ns": at,
                "end_ns": end,
                "duration_s": took,
                "inferred": False,
                "synthetic": False,
                "error_type": "timeout" if self.rng.random() < 0.03 else None,
            }
        )
        return end

    def _mine(self, table: str, key: dict[str, Any]) -> list[dict[str, Any]]:
        name = key["trajectory_id"]
        return [row for row in self.rows[table][-200:] if row["trajectory_id"] == name]

    def _trajectory_row(
        self, key: dict[str, Any], one: int, begin: int, end: int, worker: str
    ) -> None:
        steps, tools = self._mine("steps", key), self._mine("tool_calls", key)
        sums = {name: sum(row[name] for row in steps) for name in _SUMMED}
        sums["looked_up_tokens"] = sums["input_tokens"]
        phases = {f"{p}_s": sum(row[f"{p}_ns"] for row in steps) / SECOND for p in _PHASES}
        self.rows["trajectories"].append(
            {
                **key,
                **sums,
                **phases,
                "sample_index": one % 8,
                "state": "finished",
                "start_ns": begin,
                "end_ns": end,
                "duration_s": (end - begin) / SECOND,
                "steps": len(steps),
                "tool_calls": len(tools),
                "tool_s": sum(row["duration_s"] for row in tools),
                "peak_context_tokens": steps[-1]["input_tokens"] + steps[-1]["output_tokens"],
                "moves": len(self._mine("moves", key)),
                "workers": len({row["worker_id"] for row in steps}),
                "worker_id": worker,
                "predicted_p50": steps[0]["predicted_p50"],
                "reward": 1.0 if self.rng.random() < 0.4 else 0.0,
                "truncated": False,
                "outcome": "finished",
                "errors": sum(row["error_type"] is not None for row in tools),
            }
        )
        self._spans(key, begin, end, steps, tools)

    def _spans(
        self,
        key: dict[str, Any],
        begin: int,
        end: int,
        steps: list[dict[str, Any]],
        tools: list[dict[str, Any]],
    ) -> None:
        attrs = '{"heddle.run.id":"' + RUN + '"}'
        rest: dict[str, Any] = {"service": "trainer", "status": "ok", "attrs": attrs, **key}
        named = [("invoke_agent coder", begin, end)]
        named += [("chat Qwen3-14B", row["start_ns"], row["end_ns"]) for row in steps]
        named += [("execute_tool " + r["tool_name"], r["start_ns"], r["end_ns"]) for r in tools]
        for serial, (name, at, until) in enumerate(named):
            self.rows["spans"].append(
                {**rest, "name": name, "start_ns": at, "end_ns": until, "span_id": f"{serial:016x}"}
            )

    def _cut(self, rollout: str, now: int) -> None:
        """Make the rollout one that still runs: what lies after *now* has not happened."""
        for table in ("steps", "tool_calls", "trajectories"):
            mine = [row for row in self.rows[table] if row["rollout_id"] == rollout]
            for row in mine:
                if row["start_ns"] > now:
                    self.rows[table].remove(row)
                elif row["end_ns"] > now:
                    row.update(state="running", end_ns=None)
                    if table == "trajectories":
                        row["duration_s"] = (now - row["start_ns"]) / SECOND

    def _workers(self, rollout: str, start: int, wall: int, good: float, ends: list[int]) -> None:
        for worker in range(8 if ends else 0):
            last = max((e for i, e in enumerate(ends) if i % 8 == worker), default=start)
            stop = min(last - start, wall)
            self._pieces(rollout, f"w{worker}", start, stop, wall, good)

    def _pieces(
        self, rollout: str, worker: str, start: int, stop: int, wall: int, good: float
    ) -> None:
        states = ("busy_mixed", "busy_decode", "busy_decode", "busy_prefill", "queued", "tool_wait")
        weights = (3, 5, 4, 1, 2.5 * good * good, 1.2 * good)
        at, pieces = min(int(self.rng.uniform(0.2, 2) * SECOND), stop), []
        pieces.append(("ramp_up", 0, at))
        while at < stop:
            state = self.rng.choices(states, weights)[0]
            until = min(at + int(self.rng.lognormvariate(0.8, 0.7) * SECOND), stop)
            pieces.append((state, at, until))
            at = until
        pieces.append(("tail_bubble", stop, wall))
        for state, begin, end in pieces:
            if end > begin:
                self._piece(rollout, worker, state, start + begin, start + end)

    def _piece(self, rollout: str, worker: str, state: str, begin: int, end: int) -> None:
        whose = {"run_id": RUN, "rollout_id": rollout, "worker_id": worker, "degree": 1}
        piece = {**whose, "state": state, "start_ns": begin, "end_ns": end}
        self.rows["strips"].append(piece)
        self.rows["partition"].append({**piece, "gpu_ns": end - begin})

    def _sums(self, rollout: str, preset: str, start: int, wall: int, *, running: bool) -> None:
        key = {"run_id": RUN, "rollout_id": rollout}
        mine = [row for row in self.rows["trajectories"] if row["rollout_id"] == rollout]
        self.rows["rollouts"].append(
            {
                **key,
                "kind": "train",
                "preset": preset,
                "policies": "order=fcfs,placement=sticky",
                "state": "running" if running else "finished",
                "start_ns": start,
                "end_ns": None if running else start + wall,
                "makespan_s": wall / SECOND,
                "gpus": 8,
                "layout": "1,1,1,1,1,1,1,1",
                "expected": len(mine),
                "trajectories": len(mine),
                "finished": sum(row["state"] == "finished" for row in mine),
                "predicted_makespan_s": wall / SECOND * 0.93 if "heddle" in preset else None,
                "clock_speed": 20.0,
            }
        )
        self.rows["accounts"].append(
            {
                **key,
                "gpus": 8,
                "wall_ns": wall,
                "start_ns": start,
                "end_ns": start + wall,
                "provisional": running,
                "total_gpu_ns": 8 * wall,
                "source": "rollout span",
            }
        )
        self.rows["plans"].append(
            {
                **key,
                "at_ns": start,
                "layout": "1,1,1,1,1,1,1,1",
                "preset": preset,
                "predicted_makespan_s": wall / SECOND * 0.93,
                "solve_s": 0.21,
                "because": "8 x TP1 has the lowest expected makespan of 5 layouts tried",
            }
        )
        for metric in ("output_tokens", "steps", "duration_s", "tool_s"):
            self._tails(key, metric, sorted(float(row[metric]) for row in mine))

    def _tails(self, key: dict[str, Any], metric: str, values: list[float]) -> None:
        if not values:
            return
        p50, p90, p99 = (values[int(q * (len(values) - 1))] for q in (0.5, 0.9, 0.99))
        row = {"metric": metric, "count": len(values), "p50": p50, "p90": p90, "p99": p99}
        row |= {"max": values[-1], "max_over_median": values[-1] / p50 if p50 else None}
        self.rows["tail"].append({**key, **row})


_FILTERS = {
    "run": "run_id",
    "rollout": "rollout_id",
    "trajectory": "trajectory_id",
    "group": "group_id",
    "task": "task",
    "worker": "worker_id",
    "by": "by",
}
_PHASES = ("held", "queue", "prefill", "decode")
_SUMMED = ("input_tokens", "output_tokens", "cached_tokens", "retractions")
