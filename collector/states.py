"""Which state is a GPU in, given what is observed on its worker?

The first rule that holds decides the state of (worker, instant):
unknown       no `covered` activity says that telemetry covers the instant
down          the engine is dead
weight_sync   weights are loaded; engines are paused, so it beats a step that merely resides
busy_mixed, busy_prefill, busy_decode   a prefill and a decode, or one of them, is in the engine
reallocation  the layout changes (what still runs while it drains is busy)
unknown       `opaque`: a request is there and nobody said what happened to it
migration     a move somebody waits for
queued        a request waits, in the controller (held) or in the engine (queued)
tool_wait     a trajectory homed here is in a tool
orchestrator  a trajectory homed here is live and none of the above
ramp_up, tail_bubble   before the first, after the last live instant of this worker
starved_gap   between them without any live trajectory
A worker that never had a trajectory is measured against the fleet's first and last live instant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, get_args

import numpy as np

from heddle.collector.activities import LIVE_KINDS, Bools, Ints, Kind

State: TypeAlias = Literal[
    "unknown", "down", "weight_sync", "reallocation", "busy_mixed", "busy_prefill", "busy_decode",
    "migration", "queued", "tool_wait", "orchestrator", "ramp_up", "tail_bubble", "starved_gap",
    "unallocated",
]  # fmt: skip
STATES: Final[tuple[State, ...]] = get_args(State)
STATE: Final = {state: code for code, state in enumerate(STATES)}
BUSY: Final[tuple[State, ...]] = ("busy_mixed", "busy_prefill", "busy_decode")
IDLE: Final[tuple[State, ...]] = (
    "migration", "queued", "tool_wait", "orchestrator", "ramp_up", "tail_bubble", "starved_gap",
)  # fmt: skip
"""States in which a leased, working GPU waited: what blame.py splits."""
BLAMED_KINDS: Final[dict[State, tuple[Kind, ...]]] = {
    "migration": ("move",),
    "queued": ("held", "queued"),
    "tool_wait": ("tool",),
    "orchestrator": ("live",),
}
"""States answered for by trajectories on the same worker, and what these must be doing."""
FLEET_STATES: Final[tuple[State, ...]] = ("tail_bubble", "starved_gap")
"""States answered for by whoever is still live anywhere."""


UNTOLD: Final[tuple[State, ...]] = ("unknown", "unallocated")


def is_told(gpu_ns: Mapping[str, int]) -> bool:
    """Whether a partition (state to GPU-ns) says of any GPU what it did."""
    return any(ns > 0 and state not in UNTOLD for state, ns in gpu_ns.items())


def live(on: Mapping[Kind, Bools]) -> Bools:
    """Pieces in which any trajectory is live on the worker."""
    return np.logical_or.reduce([on[kind] for kind in LIVE_KINDS])


def classify(on: Mapping[Kind, Bools]) -> Ints:
    """The state's code of every piece; a later line beats an earlier one.

    Where nothing is live it says starved_gap; which of these are ramp_up or tail_bubble is known
    only with the worker's whole time at hand.
    """
    states = np.full(len(on["live"]), STATE["starved_gap"])
    rules: list[tuple[State, Bools]] = [
        ("orchestrator", live(on)),
        ("tool_wait", on["tool"]),
        ("queued", on["held"] | on["queued"]),
        ("migration", on["move"]),
        ("unknown", on["opaque"]),
        ("reallocation", on["reallocation"]),
        ("busy_decode", on["decode"]),
        ("busy_prefill", on["prefill"]),
        ("busy_mixed", on["prefill"] & on["decode"]),
        ("weight_sync", on["weight_sync"]),
        ("down", on["down"]),
        ("unknown", ~on["covered"]),
    ]
    for state, holds in rules:
        states[holds] = STATE[state]
    return states
