"""With which command and environment is an engine of some degree started?

One command for all with {port}, {host}, {degree}, {worker_id} and {gpus}; a degree may add flags of
its own and variables of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from heddle.controller.core.regroup import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A command; what is kept under degree 0 of `env` is for every degree."""

    command: tuple[str, ...]
    flags: Mapping[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])
    env: Mapping[int, Mapping[str, str]] = field(default_factory=dict[int, Mapping[str, str]])

    def filled(self, worker_id: str, place: Place, host: str, port: int | str) -> list[str]:
        """The words of the command."""
        values = {
            "{port}": str(port),
            "{host}": host,
            "{degree}": str(place.degree),
            "{worker_id}": worker_id,
            "{gpus}": _listed(place),
        }
        words = (*self.command, *self.flags.get(place.degree, ()))
        return [_filled(word, values) for word in words]

    def environment(self, place: Place, *, gpus: bool) -> dict[str, str]:
        """What its environment has beside ours; with `gpus` it sees those of its place alone."""
        own = {"CUDA_VISIBLE_DEVICES": _listed(place)} if gpus else {}
        return {**own, **self.env.get(0, {}), **self.env.get(place.degree, {})}


def _listed(place: Place) -> str:
    return ",".join(map(str, place.gpus))


def _filled(word: str, values: Mapping[str, str]) -> str:
    for placeholder, value in values.items():
        word = word.replace(placeholder, value)
    return word
