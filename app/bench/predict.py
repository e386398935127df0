"""How good is the length predictor, how near to the best that anybody could do, and how fast?

Generated workloads with an oracle's ceiling; with `--traces DIR` the real sets too. Times are CPU
seconds, which a busy machine stretches less than its wall clock.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from heddle.app.bench import predict_sets as sets
from heddle.app.bench.figures import Figure, Say
from heddle.app.bench.predict_ceiling import by_blocks, oracle_of, parts_of, siblings_of
from heddle.app.bench.predict_pairs import more_is_known
from heddle.app.bench.predict_planning import planned
from heddle.app.bench.predict_speed import ROWS, speed

PRESETS: Final = ("coding", "search", "math")
GROUPS: Final = {"coding": 160, "search": 352, "math": 1120}
"""About ROWS step rows each, in the generator's blocks of 16: as much as a training set is asked to
hold. On a third of it the network learns less of math (lab-log.md), and after 8 steps of math few
are left: 231 trajectories of 96 groups, 2,800 of 1,120. The first groups are always the same."""
FEW_GROUPS: Final = 32
BEST_APART: Final = {0: 0.42, 4: 0.44}
"""Spearman of the best that was fitted to kv_cache_tester before, boosted trees, by k."""


def run(*, quick: bool, say: Say, traces: Path | None = None) -> dict[str, Figure]:
    """Everything; --quick is one preset on a third of the groups and a tenth of the rows."""
    figures: dict[str, Figure] = {}
    for preset in PRESETS[2:] if quick else PRESETS:
        figures |= _generated(preset, FEW_GROUPS if quick else GROUPS[preset], say)
    figures |= speed(ROWS // 10 if quick else ROWS, say)
    if traces is not None:
        figures |= _real(traces, sets.REAL[:1] if quick else sets.REAL, say)
    return figures


def _generated(preset: str, groups: int, say: Say) -> dict[str, Figure]:
    found = sets.generated(preset, groups)
    rows = found.fitted.rows
    oracle, siblings = oracle_of(preset, groups, rows), siblings_of(preset, rows)
    judged = {k: at for k in sets.KS if len(at := found.at(k)) >= sets.FEWEST}
    parts = {k: parts_of(found, (oracle, siblings), at) for k, at in judged.items()}
    for k, at in judged.items():
        said = by_blocks(found, (oracle, siblings), at)
        say(f"{preset} k={k} n={len(at)}: {parts[k].told}{said}")
    late = [k for k in judged if k >= 2]
    worst = min(late, key=lambda k: parts[k].spearman)
    who = "the learned one" if found.accepted else "group history, which the gate kept"
    note = f"worst of k = {', '.join(map(str, late))}; {who}; {groups} groups of 16"
    at_worst = f"{note}; k = {worst}, {len(judged[worst])} trajectories: {parts[worst].told}"
    recall20 = min(parts[k].recall20 for k in late)
    off = max(abs(part.covered - 0.8) for part in parts.values())
    return {
        f"{preset}_spearman_of_oracle": Figure(parts[worst].spearman, "x", 0.9, "higher", at_worst),
        f"{preset}_recall20_of_oracle": Figure(recall20, "x", 0.9, "higher", note),
        f"{preset}_coverage_off": Figure(off, "", 0.05, "lower", "of 0.8, the worst step"),
        **more_is_known(preset, found, oracle),
        **planned(preset, found, say),
    }


def _real(folder: Path, names: tuple[str, ...], say: Say) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for name in names:
        found = sets.real(folder, name)
        by_k = {k: sets.against_siblings(found, k) for k in (0, 4)}
        who = "learned" if found.accepted else "group history"
        note = f"{who}; " + ", ".join(f"k = {k}: {gain:+.3f}" for k, gain in by_k.items())
        say(f"{name}: {note}")
        figures[f"{name}_over_siblings"] = Figure(min(by_k.values()), "", -0.02, "higher", note)
    if len(names) > 1:
        figures |= _families(folder) | _apart(folder)
    return figures


def _families(folder: Path) -> dict[str, Figure]:
    """Recall of the longest fifth where no network saw the trajectory's task family."""
    found = sets.families(folder)
    figures: dict[str, Figure] = {}
    for k in (0, 4):
        at = found.at(k)
        ours, history = (
            sets.ranks(told[at], found.truth[at])[1]
            for told in (found.fitted.learned, found.fitted.history)
        )
        note = f"the learned one, families held out; group history {history:.3f}"
        figures[f"family_recall20_k{k}"] = Figure(ours, "", history, "higher", note)
    return figures


def _apart(folder: Path) -> dict[str, Figure]:
    """Spearman where hardly any task was sampled twice: no siblings, and the longest were cut."""
    found = sets.real(folder, sets.APART)
    figures: dict[str, Figure] = {}
    who = "the learned one" if found.accepted else "group history"
    for k, best in BEST_APART.items():
        at = found.at(k)
        told = (found.chosen[at], found.fitted.history[at], sets.prompt_only(found)[at])
        ours, history, prompt = (sets.ranks(one, found.truth[at])[0] for one in told)
        note = (
            f"{who}; group history {history:.3f}, prompt only {prompt:.3f}; target: boosted trees"
        )
        figures[f"{sets.APART}_k{k}"] = Figure(ours, "", best, "higher", note)
    return figures
