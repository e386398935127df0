"""What does the text of an engine's /metrics say, in the few numbers that accounting uses?

Standard library only. NaN and infinities count as not said (SGLang 0.5.23 sends NaN for
fwd_occupancy without a device timer). Series of several tensor-parallel ranks repeat each other
(the largest is taken), those of data-parallel ranks add up. With priority scheduling a gauge has a
series per band beside the total (priority=""); without a total the bands add up. Gauges may be
stale by up to half a minute, counters are not: only counters refine the partition.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from math import isfinite
from typing import Final, NamedTuple

PREFIX: Final = "sglang:"
TOTALS: Final = {
    "forward_s": "forward_execution_seconds_total",
    "idle_s": "scheduler_idle_seconds_total",
    "retracted": "num_retracted_requests_total",
}
GAUGES: Final = {
    "running": "num_running_reqs",
    "queue": "num_queue_reqs",
    "kv_usage": "token_usage",
}
# `forward_execution_seconds_total` has a category for time in which nothing ran.
_NOT_FORWARD: Final = "idle"
_LINE: Final = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Series(NamedTuple):
    """One line: a name without its prefix, labels and a finite value."""

    name: str
    labels: dict[str, str]
    value: float


def series(text: str) -> Iterator[Series]:
    """Every line that says a number; comments and what is no such line are passed over."""
    for line in text.splitlines():
        found = None if line.startswith("#") else _LINE.match(line.strip())
        if found is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        if isfinite(value):
            labels = {key: said for key, said in _LABEL.findall(found[2] or "")}
            yield Series(found[1].removeprefix(PREFIX), labels, value)


def readings(text: str) -> dict[str, float]:
    """The numbers of TOTALS and GAUGES that the text says; what it does not say is absent."""
    named: dict[str, list[Series]] = defaultdict(list)
    for one in series(text):
        named[one.name].append(one)
    found: dict[str, float] = {}
    for key, name in {**TOTALS, **GAUGES}.items():
        mine = [x for x in named[name] if x.labels.get("category") != _NOT_FORWARD]
        if mine:
            found[key] = _over_ranks(mine, together=max if key == "kv_usage" else sum)
    return found


def _over_ranks(mine: list[Series], together: object) -> float:
    """Summed over what a rank splits, the largest over tensor ranks, joined over data ranks."""
    ranks: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    total = [x for x in mine if not x.labels.get("priority")]
    for x in total or mine:
        rank = x.labels.get("tp_rank", "0") + "/" + x.labels.get("pp_rank", "0")
        ranks[x.labels.get("dp_rank", "0")][rank] += x.value
    each = [max(values.values()) for values in ranks.values()]
    return max(each) if together is max else sum(each)
