"""Is another layout worth what the change costs?

Both layouts are priced in the same way, so that its error mostly cancels. In closed form: equal
engines by late binding, mixed ones by their best cut; or as imagined (imagined.py). The gain is
counted for one rollout only, though a layout is usually kept for more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from heddle.controller.core.cost import homogeneous_s
from heddle.controller.core.exact import Columns, Runs, best_cut
from heddle.controller.core.imagined import imagined_s
from heddle.controller.core.types import Latency, Work

MARGIN: Final = 1.25
"""Times its cost that a change must save."""


class Pricing(Protocol):
    """Makespan in seconds of those degrees; `mixed`: they or what they are compared with mix."""

    def __call__(
        self,
        works: Sequence[Work],
        laws: Mapping[int, Latency],
        degrees: Sequence[int],
        *,
        mixed: bool,
    ) -> float:
        """See the class."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to change, and the sentence that says why."""

    change: bool
    gain_s: float | None
    because: str


def priced_s(
    works: Sequence[Work], laws: Mapping[int, Latency], degrees: Sequence[int], *, mixed: bool
) -> float:
    """In closed form: `mixed` degrees by their best cut, equal engines by late binding."""
    if not mixed:
        return homogeneous_s(works, laws[degrees[0]], len(degrees))
    columns = Columns.of(works)
    runs = {d: Runs(columns, laws[d]) for d in set(degrees)}
    return best_cut(runs, sorted(degrees, reverse=True)).makespan_s


def imagined(
    works: Sequence[Work], laws: Mapping[int, Latency], degrees: Sequence[int], *, mixed: bool
) -> float:
    """As imagined; what is compared has no say in it."""
    _ = mixed
    return imagined_s(works, laws, degrees)


def worth(
    works: Sequence[Work],
    laws: Mapping[int, Latency],
    now: Sequence[int],
    wanted: Sequence[int],
    cost_s: float,
    margin: float = MARGIN,
    price_s: Pricing = priced_s,
) -> Verdict:
    """Whether the wanted degrees end sooner than those there are, by more than the margin."""
    if not now:
        return Verdict(True, None, "no engine serves yet")
    if sorted(now) == sorted(wanted):
        return Verdict(False, 0.0, "the layout is there already")
    if not works:
        return Verdict(False, None, "no lengths to compare layouts by: degrees stay")
    if unknown := sorted({*now, *wanted} - set(laws)):
        return Verdict(False, None, f"no latency law of degree {unknown[0]}: degrees stay")
    mixed = len(set(now)) > 1 or len(set(wanted)) > 1
    here_s, there_s = (price_s(works, laws, those, mixed=mixed) for those in (now, wanted))
    gain_s = here_s - there_s
    said = f"{here_s:.0f} s as it is, {there_s:.0f} s after a change that costs {cost_s:.0f} s"
    if gain_s > margin * cost_s:
        return Verdict(True, gain_s, said)
    return Verdict(False, gain_s, f"{said}: not {margin:g} times its cost, degrees stay")
