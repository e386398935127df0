"""Which closed form do timings of a live engine follow, and how well does it predict others?

Pure: timings in, a profile document out, in the shape that `latency.load_profile` reads. Every
second batch and every second size of new tokens is held out first; the form that is saved is then
fitted to all. The raw sweep is a document of its own, which only an emulated engine reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import combinations
from statistics import fmean
from typing import Any, Final

import numpy as np
import orjson

from heddle.models.latency import LatencyError

FORMAT: Final = "heddle-profile/1"
SWEEP: Final = "heddle-sweep/1"
_LEAST: Final = 3
"""Points that three coefficients need."""


class TooFewPoints(LatencyError):
    """Nothing can be fitted to that."""

    def __init__(self, what: str, points: int) -> None:
        super().__init__(
            f"{points} {what} points are too few to fit three coefficients; "
            "give the engine more KV room or leave --quick out"
        )


@dataclass(frozen=True, slots=True)
class Decode:
    """One iteration of `batch` sequences of that mean context; `level` names its grid line."""

    level: int
    batch: float
    context: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Prefill:
    """`new` tokens of one request after a cached prefix."""

    new: int
    prefix: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Fetch:
    """`tokens` that one request found in the engine's storage, and what that took longer than on
    the GPU."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The engine that was timed; None: it did not say, or cannot do it."""

    system: str
    model: str
    degree: int
    engine: str
    kv_tokens: int
    max_running: int
    chunk_tokens: int
    page_tokens: int
    weight_bytes: int
    kv_bytes_per_token: int
    storage: str = ""
    """Where its HiCache keeps pages that other engines may read."""
    request_s: float
    """What a lone request takes outside of queue, prefill and decode."""
    launch_s: float | None = None
    load_s: float | None = None
    wake_s: float | None = None
    sleep_s: float | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """Three coefficients and their relative errors; `held` are of points the first fit left out."""

    coefficients: tuple[float, float, float]
    mean: float
    worst: float
    held_mean: float
    held_worst: float
    held_points: int


def decode_fit(points: Sequence[Decode]) -> Fit:
    """a + b * batch + c * batch * context, in seconds."""
    batches = sorted({round(point.batch) for point in points})
    held = set(batches[1:-1:2])
    rows = [(1.0, point.batch, point.batch * point.context) for point in points]
    out = [round(point.batch) in held for point in points]
    return _fit("decode", rows, [point.seconds for point in points], out)


def prefill_fit(points: Sequence[Prefill]) -> Fit:
    """p0 + p1 * new + p2 * new * (prefix + new / 2), in seconds."""
    held = set(sorted({point.new for point in points})[1:-1:2])
    rows = [(1.0, p.new, p.new * (p.prefix + p.new / 2)) for p in points]
    out = [point.new in held for point in points]
    return _fit("prefill", rows, [point.seconds for point in points], out)


def _fit(
    what: str,
    rows: Sequence[tuple[float, float, float]],
    seconds: Sequence[float],
    out: Sequence[bool],
) -> Fit:
    terms, measured, held = np.array(rows), np.array(seconds), np.array(out, dtype=bool)
    if len(measured) - held.sum() < _LEAST:
        raise TooFewPoints(what, len(measured))
    blind = terms[held] @ _solve(terms[~held], measured[~held]) / measured[held] - 1
    final = _solve(terms, measured)
    error = np.abs(terms @ final / measured - 1)
    blind = np.abs(blind) if held.any() else error
    a, b, c = (float(x) for x in final)
    return Fit(
        (a, b, c),
        float(error.mean()),
        float(error.max()),
        float(blind.mean()),
        float(blind.max()),
        int(held.sum()),
    )


def _solve(terms: np.ndarray[Any, Any], measured: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Least squares of the relative error without negative coefficients: all 7 choices of terms."""
    rows, ones = terms / measured[:, None], np.ones(len(measured))
    best, least = np.zeros(3), np.inf
    for count in (1, 2, 3):
        for chosen in combinations(range(3), count):
            part = rows[:, chosen]
            scale = np.linalg.norm(part, axis=0)
            scale[scale == 0] = 1.0
            found = np.linalg.lstsq(part / scale, ones, rcond=None)[0] / scale
            loss = float(((part @ found - 1) ** 2).sum())
            if (found >= 0).all() and loss < least - 1e-12:
                best, least = np.zeros(3), loss
                best[list(chosen)] = found
    return best


def profile_document(
    subject: Subject,
    decode: Fit,
    prefill: Fit,
    fetches: Sequence[Fetch] = (),
    *,
    version: int,
    measured_at: str,
) -> dict[str, Any]:
    """What `load_profile` reads: milliseconds, c in ms a thousand tokens."""
    (a, b, c), (p0, p1, p2) = decode.coefficients, prefill.coefficients
    times = {
        name: getattr(subject, name)
        for name in ("launch_s", "load_s", "wake_s", "sleep_s")
        if getattr(subject, name) is not None
    }
    degree = {
        "decode_ms": {"a": _digits(a * 1e3), "b": _digits(b * 1e3), "c": _digits(c * 1e6)},
        "prefill_ms": {"p0": _digits(p0 * 1e3), "p1": _digits(p1 * 1e3), "p2": _digits(p2 * 1e3)},
        "kv_capacity_tokens": subject.kv_tokens,
        "times_s": times,
        "fit": {"decode": _errors(decode), "prefill": _errors(prefill)},
        **_fetch_row(subject, fetches),
    }
    return {
        "format": FORMAT,
        "version": version,
        "system": subject.system,
        "measured_at": measured_at,
        "source": f"measured by heddle profile on a live engine ({subject.engine})",
        "models": {
            subject.model: {
                "kv_bytes_per_token": subject.kv_bytes_per_token,
                "weight_bytes": subject.weight_bytes,
                "degrees": {str(subject.degree): degree},
            }
        },
    }


def _fetch_row(subject: Subject, fetches: Sequence[Fetch]) -> dict[str, Any]:
    """Absent where nothing was fetched. Over all tokens: long contexts are what moves are for."""
    if not fetches:
        return {}
    token_s = sum(f.seconds for f in fetches) / sum(f.tokens for f in fetches)
    return {"fetch": {"storage": subject.storage, "ms_per_token": _digits(token_s * 1e3)}}


def sweep_document(
    subject: Subject,
    decode: Sequence[Decode],
    prefill: Sequence[Prefill],
    fetches: Sequence[Fetch] = (),
) -> dict[str, Any]:
    """The timings themselves, for an emulated engine: `levels` share one mean context each."""
    levels: dict[int, list[Decode]] = {}
    for point in decode:
        levels.setdefault(point.level, []).append(point)
    lines = [
        {
            "context": round(fmean(p.context for p in points), 1),
            "batches": [round(p.batch, 3) for p in points],
            "seconds": [_digits(p.seconds) for p in points],
        }
        for _, points in sorted(levels.items())
    ]
    cells = {(p.prefix, p.new): p.seconds for p in prefill}
    prefixes, news = (sorted({key[i] for key in cells}) for i in (0, 1))
    table = [[_digits(cells[prefix, new]) for new in news] for prefix in prefixes]
    return {
        "format": SWEEP,
        **asdict(subject),
        "decode": lines,
        "prefill": {"new": news, "prefix": prefixes, "seconds": table},
        "fetch": {
            "tokens": [f.tokens for f in fetches],
            "seconds": [_digits(f.seconds) for f in fetches],
        },
    }


def digest(document: dict[str, Any]) -> str:
    """12 hex digits that name it in results."""
    return blake2b(orjson.dumps(document, option=orjson.OPT_SORT_KEYS), digest_size=6).hexdigest()


def _errors(fit: Fit) -> dict[str, float | int]:
    """In percent, as the shipped profiles say it."""
    return {
        "mean": round(fit.mean * 100, 2),
        "worst": round(fit.worst * 100, 2),
        "held_out_mean": round(fit.held_mean * 100, 2),
        "held_out_worst": round(fit.held_worst * 100, 2),
        "held_out_points": fit.held_points,
    }


def _digits(value: float) -> float:
    return float(f"{value:.6g}")
