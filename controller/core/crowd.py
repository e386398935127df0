"""When would each worker be done, as far as draws of its trajectories say?

Groups as sums over equally likely futures: the longest of each future, work and KV on average.
Adding one trajectory and asking every worker at once are a few vector operations. A `place` is a
trajectory's index in the snapshot, a `worker` the worker's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from heddle.controller.core.draws import DRAWS, Floats, Ints
from heddle.controller.core.memory import PEAK_GRID, Outlook
from heddle.controller.core.types import Latency, Worker

KV_FILL: Final = 0.85
"""Share of the KV room that running steps fill on average: retraction and admission keep some."""
_MEAN: Final = np.full(DRAWS, 1.0 / DRAWS)


class Crowd:
    """The workers' groups; `home` of each place that counts already, negative where none."""

    def __init__(self, workers: Sequence[Worker], outlook: Outlook, home: Ints) -> None:
        self.outlook = outlook
        laws = [w.latency for w in workers]
        kinds = sorted({law.degree: law for law in laws}.items())
        order = [degree for degree, _ in kinds]
        self.kind: Ints = np.array([order.index(law.degree) for law in laws], dtype=np.intp)
        self.a_s = np.array([law.a_s for law in laws])
        self.kv = np.array([float(max(law.kv_tokens, 1)) for law in laws])
        self.running = np.array([float(max(law.max_running, 1)) for law in laws])
        self.work_by_kind = np.stack([_work_s(law, outlook) for _, law in kinds])
        self.prefill_by_kind = np.stack([_prefill_s(law, outlook.context) for _, law in kinds])
        self._area_s = self.a_s / (KV_FILL * self.kv)
        self._token_s = self.a_s / self.running
        self._longest_s = self.a_s + outlook.tool_s_a_token
        self._draws = np.ascontiguousarray(outlook.draws)[:, :, None]
        self._scratch = np.empty((DRAWS, len(laws)))
        self.peaks_of = outlook.kv
        """Expected KV tokens of each place on PEAK_GRID."""
        self._peaks = self.peaks_of[:, :, None]
        self._scratch_kv = np.empty((len(PEAK_GRID), len(laws)))
        self._areas, self._tokens = outlook.area.tolist(), outlook.tokens.tolist()
        self._gather(home)

    def add(self, place: int, worker: int, prefill_s: float = 0.0) -> None:
        """Count the trajectory of that place at that worker."""
        self.work_s[worker] += self.work_by_kind[self.kind[worker], place] + prefill_s
        self.area[worker] += self._areas[place]
        self.tokens[worker] += self._tokens[place]
        self.count[worker] += 1
        longest, peaks = self.longest[:, worker], self.peaks[:, worker]
        np.maximum(longest, self.outlook.draws[place], out=longest)
        np.add(peaks, self.peaks_of[place], out=peaks)

    def ends_s(self) -> Floats:
        """Expected end of every worker."""
        return self._ends_s(_MEAN.dot(self.longest), self.area, self.tokens, self.work_s)

    def ends_with_s(self, place: int, prefill_s: Floats | float) -> Floats:
        """Expected end of every worker if the trajectory came there."""
        longest = np.maximum(self.longest, self._draws[place], out=self._scratch)
        return self._ends_s(
            _MEAN.dot(longest),
            self.area + self._areas[place],
            self.tokens + self._tokens[place],
            self.work_s + (self._on_each(self.work_by_kind, place) + prefill_s),
        )

    def prefills_s(self, place: int) -> Floats | float:
        """What its whole context costs on every worker."""
        return self._on_each(self.prefill_by_kind, place)

    def peaks_with(self, place: int) -> Floats:
        """Most KV tokens that each worker would come to hold with that trajectory."""
        held = np.add(self.peaks, self._peaks[place], out=self._scratch_kv)
        return np.maximum.reduce(held, axis=0)

    def _on_each(self, by_kind: Floats, place: int) -> Floats | float:
        """One number where all workers have one degree: half of a placement's time is such."""
        return by_kind[0, place] if len(by_kind) == 1 else by_kind[:, place][self.kind]

    def ends_at_s(
        self, worker: int, longest: Floats, area: Floats, tokens: Floats, work_s: Floats
    ) -> Floats:
        """Expected ends of one worker with other sums, as many as given."""
        arms = np.maximum(area * self._area_s[worker], tokens * self._token_s[worker])
        return np.maximum(longest * self._longest_s[worker], arms) + work_s

    def _ends_s(self, longest: Floats, area: Floats, tokens: Floats, work_s: Floats) -> Floats:
        """Iterations (the longest, the KV room or the running cap, whichever is most) and work."""
        arms = np.maximum(area * self._area_s, tokens * self._token_s)
        return np.maximum(longest * self._longest_s, arms) + work_s

    def _gather(self, home: Ints) -> None:
        """Count everybody who is at home somewhere, at once."""
        look, m = self.outlook, len(self.kind)
        places = np.flatnonzero(home >= 0)
        at = home[places]
        work = self.work_by_kind[self.kind[at], places]
        sums = (work, look.area[places], look.tokens[places], None)
        self.work_s, self.area, self.tokens, self.count = (
            np.bincount(at, weights=values, minlength=m).astype(float) for values in sums
        )
        self.longest = np.zeros((DRAWS, m))
        self.peaks = np.zeros((len(PEAK_GRID), m))
        if not len(places):
            return
        order = np.argsort(at, kind="stable")
        starts = np.flatnonzero(np.diff(at[order], prepend=NOBODY))
        workers, sorted_places = at[order][starts], places[order]
        self.longest[:, workers] = np.maximum.reduceat(look.draws[sorted_places], starts).T
        self.peaks[:, workers] = np.add.reduceat(self.peaks_of[sorted_places], starts).T


NOBODY: Final = -1


def _work_s(law: Latency, look: Outlook) -> Floats:
    """Seconds of engine time of every rest, all but the iterations themselves."""
    new = look.growth * look.tokens
    attention = look.growth * (look.context * look.tokens + (1.0 + look.growth) / 2 * look.squares)
    decode = law.b_s * look.tokens + law.c_s * look.area
    return (
        decode
        + law.p0_s * look.steps_a_token * look.tokens
        + law.p1_s * new
        + (law.p2_s * attention)
    )


def _prefill_s(law: Latency, context: Floats) -> Floats:
    cost = law.p0_s + law.p1_s * context + law.p2_s * context * context / 2
    return np.where(context > 0, cost, 0.0)
