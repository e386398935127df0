"""Which policies does an ablation compare?

Ours and the baseline; ours with each lever taken back to the baseline's; the baseline with each of
ours alone; ours on fixed degrees (Fix-1, Fix-8); and ours with what others have for a lever:
FCFS, round-robin and least-attained (Autellix) for the order, verl's sticky sessions, Verl*'s
hybrid and slime's least load for the placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from heddle.app.replay import switches_of
from heddle.controller.core.policies import CHOICES, preset_switches

ABLATION: Final = "ablation"
"""In a list of policies: all of these."""
FULL: Final = "heddle"
BASE: Final = "verl"
_OTHERS: Final = (
    ("allocation", ("fixed-1", "fixed-8", "best-fixed", "annealed", "exact", "simulated")),
    ("order", ("fcfs", "round-robin", "least-attained")),
    ("placement", ("sticky", "hybrid", "least-load", "presorted")),
    ("migration", ("rank",)),
)


def ablation(full: str = FULL, base: str = BASE) -> list[str]:
    """Policies as `heddle replay` takes them, the baseline first; none twice."""
    ours, theirs = asdict(preset_switches(full)), asdict(preset_switches(base))
    differ = [choice for choice in CHOICES if ours[choice] != theirs[choice]]
    removed = [f"{full}/{choice}={theirs[choice]}" for choice in differ]
    alone = [f"{base}/{choice}={ours[choice]}" for choice in differ]
    others = [
        f"{full}/{choice}={policy}"
        for choice, policies in _OTHERS
        for policy in policies
        if policy != ours[choice]
    ]
    return list(dict.fromkeys([base, full, *removed, *alone, *others]))


def expanded(policies: Sequence[str], gpus: int) -> list[str]:
    """With `ablation` spelled out, but for fixed degrees that so many GPUs do not hold."""
    fitting = [policy for policy in ablation() if fixed_degree(policy) <= gpus]
    spelled = [p for name in policies for p in (fitting if name == ABLATION else [name])]
    return list(dict.fromkeys(spelled))


def fixed_degree(policy: str) -> int:
    """The degree that a policy's allocation is fixed to; 0 for none."""
    degree = switches_of(policy).allocation.removeprefix("fixed-")
    return int(degree) if degree.isdigit() else 0
