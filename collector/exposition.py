"""How are metrics written so that Prometheus reads them? Its own text, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

MEDIA: Final = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[Mapping[str, str], float]
Metric = tuple[str, str, str, Iterable[Sample]]
"""Name, counter or gauge, meaning, samples with their labels."""


def one(name: str, kind: str, meaning: str, value: float) -> Metric:
    """A metric with one sample and no label."""
    return name, kind, meaning, [({}, value)]


def lines_of(metrics: Iterable[Metric]) -> list[str]:
    """Every metric, each with its help and type."""
    lines: list[str] = []
    for name, kind, meaning, samples in metrics:
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{_labels(labels)} {value:g}" for labels, value in samples]
    return lines


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
