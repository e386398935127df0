"""How long does an iteration of the emulated engine really take?

Raw sweeps of `models/profiles/*.csv`, interpolated, plus effects outside the planner's law:
CUDA-graph batch steps, CPU time an iteration, seeded noise. Never `heddle.models.latency`, so that
a planner is not graded against itself. Parameters are frozen; `truth_hash` names them in results.
"""

from __future__ import annotations

import csv
import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from hashlib import blake2b
from importlib.resources import files
from math import log
from typing import Any, Final, NamedTuple

import numpy as np

from heddle.controller.emulator.errors import EngineError
from heddle.controller.emulator.plain import Plain

# SGLang captures decode graphs for these batch sizes and pads a batch up to the next of them.
CAPTURED: Final = (1, 2, 4, 8, 12, *range(16, 257, 8))
HBM_GIB: Final = {"h100_sxm": 80, "h200_sxm": 141}
_NOISE_TABLE: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthParams(Plain):
    """What the sweeps do not hold; all of it is in the hash."""

    graph_steps: bool = True
    # SGLang's overlap scheduler hides most of its CPU time; what remains visible is a few 100 us.
    cpu_iteration_s: float = 0.0003
    cpu_sequence_s: float = 3e-6
    prefill_cpu_s: float = 0.001
    noise_sigma: float = 0.02
    """Log-deviation of an iteration's time, constant over `noise_block` iterations."""
    noise_block: int = 256
    seed: int = 0


class Piece(NamedTuple):
    """`iterations` of them, the i-th taking first_s + i * step_s."""

    iterations: int
    first_s: float
    step_s: float

    def lasting_s(self, iterations: int) -> float:
        return self.first_s * iterations + self.step_s * (iterations * (iterations - 1) / 2)


_piece: Final = Piece._make
Table = list[list[float]]
Line = tuple[list[float], list[float], list[float], float, float]


@dataclass(frozen=True)
class Truth:
    """Prices of one engine: (system, model, degree)."""

    system: str
    model: str
    degree: int
    params: TruthParams = field(default_factory=TruthParams)

    @property
    def hash(self) -> str:
        return truth_hash(self)

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV that fit, by the formula the profiles state."""
        entry = _document(self.system)["models"][self.model]["degrees"][str(self.degree)]
        return int(entry["kv_capacity_tokens"])

    @property
    def kv_bytes(self) -> float:
        """Of one token on one GPU."""
        return _document(self.system)["models"][self.model]["kv_bytes_per_token"] / self.degree

    @property
    def weight_bytes(self) -> int:
        return int(_document(self.system)["models"][self.model]["weight_bytes"])

    def pieces(
        self, batch: int, contexts: int, iteration: int, most: int, slow_s: float = 0.0
    ) -> list[Piece]:
        """The next `most` decode iterations of a constant batch, cut at knots and noise blocks."""
        line = self._lines.get(batch) or self._line(batch)
        knots, seconds, slopes, pad_s, cpu_s = line
        fixed_s, block, noises = cpu_s + slow_s, self.params.noise_block, self._noises
        at, last, made = contexts / batch, len(knots) - 2, list[Piece]()
        while most > 0:
            low = bisect_right(knots, at) - 1
            low = last if low > last else low if low > 0 else 0
            count = block - iteration % block
            count = count if count < most else most
            if low < last:
                until = int(knots[low + 1] - at) + 1
                if until < count:
                    count = max(until, 1)
            noise, slope_s = noises[iteration // block % _NOISE_TABLE], slopes[low]
            kernel_s = seconds[low] + slope_s * (at - knots[low]) + pad_s
            made.append(_piece((count, noise * kernel_s + fixed_s, noise * slope_s)))
            at, iteration, most = at + count, iteration + count, most - count
        return made

    def prefill_s(
        self, parts: Sequence[tuple[int, int]], iteration: int, slow_s: float = 0.0
    ) -> float:
        """One prefill pass over (new, prefix) parts of several requests."""
        point_s = self._prefill_point_s
        if len(parts) == 1:
            new, prefix = parts[0]
            kernel_s = point_s(new, 0)
            if prefix:
                deep_s = point_s(new, prefix)
                kernel_s = deep_s if deep_s > kernel_s else kernel_s
        else:
            kernel_s = self._together_s(parts)
        least_s = self._least_s
        kernel_s = kernel_s if kernel_s > least_s else least_s
        noise = self._noises[iteration // self.params.noise_block % _NOISE_TABLE]
        return kernel_s * noise + self.params.prefill_cpu_s + slow_s

    def _together_s(self, parts: Sequence[tuple[int, int]]) -> float:
        """One kernel launch for all; each attends to itself, not to its neighbours in the batch."""
        point_s = self._prefill_point_s
        total = sum(new for new, _ in parts)
        apart = total * total - sum(new * new for new, _ in parts)
        kernel_s = point_s(total, 0) - _pair_s(self.system, self.model, self.degree) * apart / 2
        return kernel_s + sum(
            max(0.0, point_s(new, prefix) - point_s(new, 0)) for new, prefix in parts if prefix
        )

    def _prefill_point_s(self, new: int, prefix: int) -> float:
        """Straight in the logarithms of `new`, straight in `prefix`; flat below the sweep."""
        news, prefixes, table, slopes = self._prefill_curves
        x = new if new > news[0] else news[0]
        row = bisect_right(news, x) - 1
        row = row if row < len(slopes[0]) else row - 1
        ratio = x / news[row]
        if prefix == 0:
            return table[0][row] * ratio ** slopes[0][row]
        column = bisect_right(prefixes, prefix) - 1
        last = len(prefixes) - 2
        column = last if column > last else column if column > 0 else 0
        low_s = table[column][row] * ratio ** slopes[column][row]
        high_s = table[column + 1][row] * ratio ** slopes[column + 1][row]
        share = (prefix - prefixes[column]) / (prefixes[column + 1] - prefixes[column])
        return low_s + (high_s - low_s) * share

    @cached_property
    def _prefill_curves(self) -> tuple[list[float], list[float], Table, Table]:
        news, prefixes, table = _prefill_table(self.system, self.model, self.degree)
        slopes = [
            [log(ys[i + 1] / ys[i]) / log(news[i + 1] / news[i]) for i in range(len(news) - 1)]
            for ys in table
        ]
        return news, prefixes, table, slopes

    @cached_property
    def _least_s(self) -> float:
        return self._prefill_point_s(1, 0)

    @cached_property
    def _noises(self) -> list[float]:
        if self.params.noise_sigma == 0.0:
            return [1.0] * _NOISE_TABLE
        return _noise_table(self.params.seed, self.params.noise_sigma)

    @cached_property
    def _lines(self) -> dict[int, Line]:
        return {}

    def _line(self, batch: int) -> Line:
        """Knots, seconds there, slopes between, padding and CPU seconds of that batch."""
        knots, seconds = _decode_line(self.system, self.model, self.degree, batch)
        slopes = [
            (seconds[i + 1] - seconds[i]) / (knots[i + 1] - knots[i]) for i in range(len(knots) - 1)
        ]
        cpu_s = self.params.cpu_iteration_s + self.params.cpu_sequence_s * batch
        self._lines[batch] = (knots, seconds, slopes, self._padding_s(batch), cpu_s)
        return self._lines[batch]

    def _padding_s(self, batch: int) -> float:
        if not self.params.graph_steps or batch > CAPTURED[-1]:
            return 0.0
        padded = CAPTURED[bisect_left(CAPTURED, batch)]
        return self._empty_s(padded) - self._empty_s(batch)

    def _empty_s(self, batch: int) -> float:
        """The line of that batch extrapolated to no context: its matrices alone."""
        knots, seconds = _decode_line(self.system, self.model, self.degree, batch)
        slope = (seconds[1] - seconds[0]) / (knots[1] - knots[0])
        return seconds[0] - slope * knots[0]


def load_truth(system: str, model: str, degree: int, params: TruthParams | None = None) -> Truth:
    """The truth of one engine, or a sentence naming what is known."""
    name = model.rsplit("/", 1)[-1]
    if system not in HBM_GIB:
        known = ", ".join(sorted(HBM_GIB))
        sentence = f"no sweep for system {system!r}; known systems are {known}"
        raise EngineError(sentence)
    rows = _sweep("decode", system)
    models = sorted({row["model"] for row in rows})
    if name not in models:
        sentence = f"no sweep for model {model!r}; known models are {', '.join(models)}"
        raise EngineError(sentence)
    degrees = sorted({int(row["tp"]) for row in rows if row["model"] == name})
    if degree not in degrees:
        sentence = f"no sweep for degree {degree}; known degrees are {degrees}"
        raise EngineError(sentence)
    return Truth(system, name, degree, params or TruthParams())


def truth_hash(truth: Truth) -> str:
    """12 hex digits of the sweeps and every parameter: printed with results."""
    said = {"truth": [truth.system, truth.model, truth.degree], **asdict(truth.params)}
    digest = blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=6)
    for kind in ("decode", "prefill"):
        digest.update((files("heddle.models.profiles") / f"{kind}_{truth.system}.csv").read_bytes())
    return digest.hexdigest()


@lru_cache(maxsize=4)
def _document(system: str) -> dict[str, Any]:
    return json.loads((files("heddle.models.profiles") / f"{system}.json").read_text("utf-8"))


@lru_cache(maxsize=4)
def _sweep(kind: str, system: str) -> list[dict[str, str]]:
    path = files("heddle.models.profiles") / f"{kind}_{system}.csv"
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))


def _rows(kind: str, system: str, model: str, degree: int) -> list[dict[str, str]]:
    rows = _sweep(kind, system)
    return [row for row in rows if row["model"] == model and row["tp"] == str(degree)]


@lru_cache(maxsize=4096)
def _decode_line(
    system: str, model: str, degree: int, batch: int
) -> tuple[list[float], list[float]]:
    """Seconds an iteration of that batch takes at the sweep's mean contexts."""
    rows = _rows("decode", system, model, degree)
    starts = sorted({int(row["ctx_start"]) for row in rows})
    columns = [sorted((int(r["batch"]), float(r["tpot_ms"]) / 1e3) for r in rows
                      if int(r["ctx_start"]) == start) for start in starts]  # fmt: skip
    # The sweep decodes 64 tokens from ctx_start: its mean context lies 32 further.
    knots = [start + 32.0 for start in starts]
    return knots, [_linear([float(b) for b, _ in c], [s for _, s in c], batch) for c in columns]


@lru_cache(maxsize=64)
def _prefill_table(
    system: str, model: str, degree: int
) -> tuple[list[float], list[float], list[list[float]]]:
    rows = _rows("prefill", system, model, degree)
    cells = {(int(r["prefix_tokens"]), int(r["new_tokens"])): float(r["ttft_ms"]) for r in rows}
    prefixes, news = (sorted({key[i] for key in cells}) for i in (0, 1))
    table = [[cells[prefix, new] / 1e3 for new in news] for prefix in prefixes]
    return [float(n) for n in news], [float(p) for p in prefixes], table


@lru_cache(maxsize=64)
def _pair_s(system: str, model: str, degree: int) -> float:
    """Seconds of attention a (new, earlier) token pair costs, from the deepest prefix of n=1024."""
    news, prefixes, table = _prefill_table(system, model, degree)
    row = news.index(1024.0)
    return max(0.0, table[-1][row] - table[0][row]) / (1024.0 * prefixes[-1])


@lru_cache(maxsize=16)
def _noise_table(seed: int, sigma: float) -> list[float]:
    rng = np.random.default_rng([seed, 0x6E6F69])
    return [float(x) for x in np.exp(sigma * rng.standard_normal(_NOISE_TABLE))]


def _linear(xs: list[float], ys: list[float], x: float) -> float:
    low = min(max(bisect_right(xs, x) - 1, 0), len(xs) - 2)
    return ys[low] + (ys[low + 1] - ys[low]) * (x - xs[low]) / (xs[low + 1] - xs[low])
