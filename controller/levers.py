"""Which lever works under which trainer, and what does it need?

One table for the docs, the API and the page (`reference`: how each framework reaches its engines).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Works = Literal["yes", "with consent", "no"]
LEVERS: Final = ("order", "placement", "moves", "reallocation")


class Lever(NamedTuple):
    """One cell."""

    trainer: str
    lever: str
    works: Works
    because: str


def _rows(trainer: str, *cells: tuple[Works, str]) -> list[Lever]:
    return [Lever(trainer, lever, *cell) for lever, cell in zip(LEVERS, cells, strict=True)]


TABLE: Final[tuple[Lever, ...]] = (
    *_rows(
        "verl, colocated",
        ("with consent", "held here; verl drops a priority on its way to SGLang, so an engine "
         "serves what was released in order of arrival unless its replica class passes it on"),
        ("yes", "verl's balancer asks acquire and release where each step goes"),
        ("yes", "between two steps, by a prefill on the target"),
        ("no", "one TP degree for all replicas, and trainer and rollout share the GPUs: engines "
         "sleep and wake with the trainer, which owns their weights"),
    ),
    *_rows(
        "verl, fully async",
        ("with consent", "as colocated"),
        ("yes", "as colocated"),
        ("yes", "also in the middle of a step: its client resumes what was aborted"),
        ("with consent", "weights come over the trainer's own NCCL group, in which a new engine is "
         "no member; standalone servers it adds by add_servers with weights from a versioned path"),
    ),
    *_rows(
        "slime",
        ("yes", "its router address is Heddle's: bytes and priorities pass here"),
        ("yes", "its engines register themselves"),
        ("yes", "between two steps, by a prefill on the target"),
        ("with consent", "its engines are its own actors; --sglang-config gives several degrees at "
         "launch, --rollout-external-engine-addrs leaves the fleet to Heddle, weights then come "
         "from disk"),
    ),
    *_rows(
        "external fleet",
        ("yes", "engines started by heddle up --fleet local or ray"),
        ("yes", "every step passes here"),
        ("yes", "between two steps, by a prefill on the target"),
        ("yes", "weights from a versioned path (update_weights_from_disk), or those the engines "
         "were started with"),
    ),
)  # fmt: skip
