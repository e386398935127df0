"""How long does an iteration take on an engine that `heddle profile` measured?

Its raw timings, interpolated. They hold what a measured engine spends on its CPU, so nothing is
added but noise. The fitted laws lie in a file beside them, which nothing here opens: a planner is
never graded against itself.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from math import log
from pathlib import Path
from typing import Any, Final

import numpy as np

from heddle.controller.emulator.errors import EngineError
from heddle.controller.emulator.request import EngineConfig
from heddle.controller.emulator.truth import Line, Table, Truth, TruthParams

SUFFIX: Final = ".sweep"
FORMAT: Final = "heddle-sweep/1"


@dataclass(frozen=True)
class MeasuredTruth(Truth):
    """Prices of the one engine that was measured."""

    sweep: dict[str, Any] = field(default_factory=dict[str, Any], compare=False)

    @property
    def hash(self) -> str:
        """12 hex digits of the timings and every parameter."""
        said = json.dumps([self.sweep, repr(self.params)], sort_keys=True)
        return blake2b(said.encode(), digest_size=6).hexdigest()

    @property
    def kv_tokens(self) -> int:
        return int(self.sweep["kv_tokens"])

    @property
    def kv_bytes(self) -> float:
        """Nothing measures it: what comes from the host then takes no time."""
        return float(self.sweep.get("kv_bytes_per_token", 0.0)) / self.degree

    @property
    def weight_bytes(self) -> int:
        return int(self.sweep["weight_bytes"])

    def _line(self, batch: int) -> Line:
        """That batch at each mean context that was timed; no dearer a context costs less."""
        levels = self.sweep["decode"]
        knots = [float(level["context"]) for level in levels]
        raw = [_at(level["batches"], level["seconds"], batch) for level in levels]
        seconds = [float(s) for s in np.maximum.accumulate(raw)]
        slopes = [
            (seconds[i + 1] - seconds[i]) / (knots[i + 1] - knots[i]) for i in range(len(knots) - 1)
        ]
        self._lines[batch] = (knots, seconds, slopes, 0.0, 0.0)
        return self._lines[batch]

    def _together_s(self, parts: Sequence[tuple[int, int]]) -> float:
        """One launch for all; what bends the line of one prompt is its attention to itself."""
        point_s = self._prefill_point_s
        total = sum(new for new, _ in parts)
        apart = total * total - sum(new * new for new, _ in parts)
        kernel_s = max(point_s(total, 0) - self._bend_s * apart, point_s(1, 0))
        return kernel_s + sum(
            max(0.0, point_s(new, prefix) - point_s(new, 0)) for new, prefix in parts if prefix
        )

    @cached_property
    def _prefill_curves(self) -> tuple[list[float], list[float], Table, Table]:
        table = self.sweep["prefill"]
        news = [float(n) for n in table["new"]]
        rows: Table = [[float(s) for s in row] for row in table["seconds"]]
        slopes = [
            [log(row[i + 1] / row[i]) / log(news[i + 1] / news[i]) for i in range(len(news) - 1)]
            for row in rows
        ]
        return news, [float(p) for p in table["prefix"]], rows, slopes

    @cached_property
    def _bend_s(self) -> float:
        """Seconds a squared token: the second difference of the line without a prefix."""
        news, _, rows, _ = self._prefill_curves
        x, y = np.array(news), np.array(rows[0])
        terms = np.c_[np.ones_like(x), x, x * x] / y[:, None]
        return max(0.0, float(np.linalg.lstsq(terms, np.ones_like(y), rcond=None)[0][2]))


def is_sweep(system: str) -> bool:
    """Whether it names a measured engine: its timings, or the profile that lies beside them."""
    return system.endswith((SUFFIX, ".json"))


def load_sweep(system: str, params: TruthParams) -> MeasuredTruth:
    """The truth in that file, or one sentence; what its timings hold is not added again."""
    path = Path(system).with_suffix(SUFFIX)
    try:
        sweep: Any = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        sentence = f"{path} is no sweep of `heddle profile`: {error}"
        raise EngineError(sentence) from error
    if not isinstance(sweep, dict) or sweep.get("format") != FORMAT:
        sentence = f"{path} is no sweep of `heddle profile`: its format is not {FORMAT}"
        raise EngineError(sentence)
    bare = replace(
        params, graph_steps=False, cpu_iteration_s=0.0, cpu_sequence_s=0.0, prefill_cpu_s=0.0
    )
    return MeasuredTruth(sweep["system"], sweep["model"], int(sweep["degree"]), bare, sweep)


def measured_config(truth: MeasuredTruth) -> EngineConfig:
    """An engine with the limits of the measured one."""
    said, usual = truth.sweep, EngineConfig()
    return replace(
        usual,
        system=truth.system,
        model=truth.model,
        degree=truth.degree,
        max_running=int(said["max_running"]) or usual.max_running,
        chunk_tokens=int(said["chunk_tokens"]) or usual.chunk_tokens,
    )


def _at(batches: Sequence[float], seconds: Sequence[float], batch: int) -> float:
    """Straight between what was timed, never falling; beyond it the slope of all of it."""
    xs = [float(x) for x in batches]
    ys = [float(y) for y in np.maximum.accumulate(seconds)]
    if batch >= xs[-1]:
        slope = max(0.0, float(np.polyfit(xs, ys, 1)[0]))
        return ys[-1] + slope * (batch - xs[-1])
    low = max(bisect_right(xs, batch) - 1, 0)
    return ys[low] + (ys[low + 1] - ys[low]) * (batch - xs[low]) / (xs[low + 1] - xs[low])
