"""When would each worker be done, as far as draws of its trajectories say?

Groups as sums over equally likely futures: the longest of each future, work and KV on average.
Adding one trajectory and asking every worker at once are a few vector operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from heddle.controller.core.draws import DRAWS, Floats, Outlook
from heddle.controller.core.types import Latency, Worker

Ints = NDArray[np.intp]
Flags = NDArray[np.bool_]

KV_FILL: Final = 0.85
"""Share of the KV room that running steps fill on average: retraction and admission keep some."""
PEAK_GRID: Final = np.concatenate([[0.0], np.geomspace(300.0, 39_000.0, 15)])
"""Iterations from now at which the KV held is looked at."""


class Crowd:
    """The workers' groups; `at` of a worker is its place in the snapshot."""

    def __init__(self, workers: Sequence[Worker], outlook: Outlook) -> None:
        self.outlook = outlook
        self.at = {w.id: i for i, w in enumerate(workers)}
        laws = [w.latency for w in workers]
        kinds = sorted({law.degree: law for law in laws}.items())
        order = [degree for degree, _ in kinds]
        self.kind: Ints = np.array([order.index(law.degree) for law in laws], dtype=np.intp)
        self.a_s = np.array([law.a_s for law in laws])
        self.kv = np.array([float(max(law.kv_tokens, 1)) for law in laws])
        self.running = np.array([float(max(law.max_running, 1)) for law in laws])
        self.work_by_kind = np.stack([_work_s(law, outlook) for _, law in kinds])
        self.prefill_by_kind = np.stack([_prefill_s(law, outlook.context) for _, law in kinds])
        m = len(laws)
        self.work_s, self.area, self.tokens, self.count = (np.zeros(m) for _ in range(4))
        self.longest = np.zeros((m, DRAWS))

    def add(self, row: int, worker: int, prefill_s: float = 0.0) -> None:
        """Count the trajectory of that row at that worker."""
        look = self.outlook
        self.work_s[worker] += self.work_by_kind[self.kind[worker], row] + prefill_s
        self.area[worker] += look.area[row]
        self.tokens[worker] += look.tokens[row]
        self.count[worker] += 1
        np.maximum(self.longest[worker], look.draws[row], out=self.longest[worker])

    def ends_s(self) -> Floats:
        """Expected end of every worker."""
        mean = self.longest.mean(axis=1)
        return self._ends_s(mean, self.area, self.tokens, self.work_s)

    def ends_with_s(self, row: int, prefill_s: Floats | float) -> Floats:
        """Expected end of every worker if the trajectory came there."""
        look = self.outlook
        return self._ends_s(
            np.maximum(self.longest, look.draws[row]).mean(axis=1),
            self.area + look.area[row],
            self.tokens + look.tokens[row],
            self.work_s + self.work_by_kind[self.kind, row] + prefill_s,
        )

    def prefills_s(self, row: int) -> Floats:
        """What its whole context costs on every worker."""
        return self.prefill_by_kind[self.kind, row]

    def _ends_s(self, longest: Floats, area: Floats, tokens: Floats, work_s: Floats) -> Floats:
        return ends_s(
            self.a_s, self.kv, self.running, self.outlook.tool_s_a_token,
            longest, area, tokens, work_s,
        )  # fmt: skip


def ends_s(
    a_s: Floats,
    kv: Floats,
    running: Floats,
    tool_s_a_token: float,
    longest: Floats,
    area: Floats,
    tokens: Floats,
    work_s: Floats,
) -> Floats:
    """Iterations (the longest, the KV room or the running cap, whichever is most) plus work."""
    arms = np.maximum(area / (KV_FILL * kv), tokens / running) * a_s
    return np.maximum((a_s + tool_s_a_token) * longest, arms) + work_s


class Peaks:
    """Expected KV tokens that each worker holds at some iterations from now."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd = crowd
        self.held = np.zeros((len(crowd.at), len(PEAK_GRID)))

    def of(self, rows: Ints) -> Floats:
        """What trajectories hold: context and growth while they are not done."""
        look = self.crowd.outlook
        alive = (look.draws[rows][:, :, None] > PEAK_GRID).mean(axis=1)
        return alive * (look.context[rows][:, None] + PEAK_GRID * (1.0 + look.growth))

    def add(self, row: int, worker: int) -> None:
        """Count it."""
        self.held[worker] += self.of(np.array([row]))[0]

    def highest_with(self, row: int) -> Floats:
        """The peak of every worker if the trajectory came there."""
        return (self.held + self.of(np.array([row]))[0]).max(axis=1)


def _work_s(law: Latency, look: Outlook) -> Floats:
    """Seconds of engine time of every row's rest, all but the iterations themselves."""
    draws = look.draws
    new = look.growth * draws
    seen = look.context[:, None] + (1.0 + look.growth) * draws / 2
    attention = law.p2_s * new * seen
    work = law.b_s * draws + law.p0_s * look.steps_a_token * draws + law.p1_s * new + attention
    mean: Floats = work.mean(axis=1)
    return mean + law.c_s * look.area


def _prefill_s(law: Latency, context: Floats) -> Floats:
    cost = law.p0_s + law.p1_s * context + law.p2_s * context * context / 2
    return np.where(context > 0, cost, 0.0)
