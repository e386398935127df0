"""After lengths shift, which layout does planning pick, and which would have ended first?

Planning sees the epoch before, as the controller's group history does; every candidate then plays
the epoch that comes, in virtual time under the emulator's own truth.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from heddle.app.replay import generated, play
from heddle.app.replay_beliefs import beliefs_of
from heddle.app.rollouts import group_facts
from heddle.controller.beliefs import Expected
from heddle.controller.core.allocation import ALLOCATIONS
from heddle.controller.core.cost import expected_ranks
from heddle.controller.core.policies import PRESETS
from heddle.controller.emulator.rollout import RUN
from heddle.controller.laws import laws
from heddle.controller.layouts import WORLDS

SHIFTS: Final = 50
GPUS: Final = 8
WORK: Final = ("demo", "coding", "search", "math", "prefill-heavy")
GROUPS: Final = (1, 2, 4, 8)
SAMPLES: Final = 8


def shift(seed: int) -> dict[str, Any]:
    """One shift: the picked layout's makespan and the best one's."""
    rng = np.random.default_rng([seed, 8])
    name, groups = str(rng.choice(WORK)), int(rng.choice(GROUPS))
    cell = generated(name, seed=seed, groups=groups, samples=SAMPLES, gpus=GPUS)
    picked = "+".join(map(str, _picked(cell, seed)))
    played: dict[str, float] = {}
    for allocation in ("fixed-1", "fixed-2", "fixed-4", "fixed-8", "exact"):
        row = play(cell, f"heddle/allocation={allocation}")
        played.setdefault(str(row["layout"]), float(row["makespan_s"]))
    if picked not in played:
        message = f"the picked layout {picked} is not among {', '.join(played)}"
        raise RuntimeError(message)
    return {
        "cell": cell.name, "picked": picked, "picked_s": played[picked],
        "best_s": min(played.values()), "played": played,
    }  # fmt: skip


def _picked(cell: Any, seed: int) -> tuple[int, ...]:
    """What the controller's preset would choose at this boundary."""
    known, rng = laws(cell.system, cell.model), np.random.default_rng(seed)
    beliefs = beliefs_of(cell.past)
    groups = [
        Expected(group=g.group, samples=g.samples, task=g.task, prompt_tokens=g.prompt_tokens)
        for g in group_facts(cell.now)
    ]
    works = expected_ranks([beliefs.works(RUN, groups, rng) for _ in range(WORLDS)])
    return ALLOCATIONS[PRESETS["heddle"].allocation](works, known, cell.gpus, rng).degrees
