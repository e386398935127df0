"""Which colour, order, unit and clock does every page and report use?

One palette by meaning, in the order of the states' precedence; the hues are Okabe and Ito's, and
the kinds of emptiness carry a pattern as well, so that no reading hangs on colour alone. No
Streamlit here: the reports use the same table.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo

Mode = Literal["light", "dark"]


@dataclass(frozen=True, slots=True)
class Meaning:
    """How one state is drawn and said; `pattern` is a plotly bar pattern, empty for solid."""

    label: str
    light: str
    dark: str
    says: str
    pattern: str = ""

    def colour(self, mode: Mode) -> str:
        return self.dark if mode == "dark" else self.light


STATES: Final[dict[str, Meaning]] = {
    "unknown": Meaning("unknown", "#d5d7da", "#4a4e55", "telemetry does not cover it"),
    "down": Meaning("down", "#3a3d42", "#94989f", "the engine did not answer", "x"),
    "weight_sync": Meaning("weight sync", "#cc79a7", "#d98fb7", "new weights are loading"),
    "reallocation": Meaning("reallocation", "#8c5a2b", "#b98350", "the layout is changing"),
    "busy_mixed": Meaning("prefill + decode", "#56b4e9", "#7cc7f2", "both kinds of forward"),
    "busy_prefill": Meaning("prefill", "#009e73", "#25b98c", "reading prompts"),
    "busy_decode": Meaning("decode", "#0072b2", "#3b9bdc", "generating tokens"),
    "migration": Meaning("move, exposed", "#7d5ba6", "#a584cf", "a trajectory changes worker"),
    "queued": Meaning("queued", "#d55e00", "#ee7d2c", "work waits, nothing runs"),
    "tool_wait": Meaning("tool wait", "#e69f00", "#f0b52e", "no request is here, a tool runs"),
    "orchestrator": Meaning("orchestrator", "#e8dc4a", "#cfc43c", "between tool end and next step"),
    "ramp_up": Meaning(
        "ramp-up", "#b9c6d6", "#5d6b7d", "before the worker's first trajectory", "."
    ),
    "tail_bubble": Meaning(
        "tail bubble", "#9aa1aa", "#7b838e", "workers are done while others still run", "/"
    ),
    "starved_gap": Meaning(
        "starved", "#c3b8ab", "#75695b", "no trajectory now, one comes later", "\\"
    ),
    "unallocated": Meaning("unallocated", "#eceef0", "#2f343b", "GPUs in no worker", "x"),
}
"""State to meaning, in the order of precedence: legends keep it."""

PAGES: Final[dict[str, Any]] = {
    "theme.font": "sans-serif",
    "theme.baseFontSize": 15,
    "theme.baseRadius": "0.5rem",
    "theme.showWidgetBorder": True,
    "theme.headingFontSizes": ["1.7rem", "1.35rem", "1.15rem"],
    "theme.metricValueFontSize": "1.55rem",
    "theme.light.primaryColor": "#0072b2",
    "theme.light.backgroundColor": "#ffffff",
    "theme.light.secondaryBackgroundColor": "#f5f6f8",
    "theme.light.textColor": "#1f2328",
    "theme.light.borderColor": "#e0e3e7",
    "theme.dark.primaryColor": "#2b86cd",
    "theme.dark.backgroundColor": "#14171b",
    "theme.dark.secondaryBackgroundColor": "#1d2127",
    "theme.dark.textColor": "#e6e8eb",
    "theme.dark.borderColor": "#31373f",
}
"""Streamlit's options for the pages: told when they are served, as files are read by folder."""

BUSY: Final = ("busy_mixed", "busy_prefill", "busy_decode")
PHASES: Final[dict[str, Meaning]] = {
    "held": Meaning("held", "#a63603", "#c9571c", "waiting in the controller", "."),
    "queue": STATES["queued"],
    "prefill": STATES["busy_prefill"],
    "decode": STATES["busy_decode"],
    "tool": STATES["tool_wait"],
    "move": STATES["migration"],
    "hidden": Meaning("move, hidden", "#d8cde6", "#5a4a75", "behind a tool, nobody waits", "."),
    "rest": STATES["orchestrator"],
    "unknown": STATES["unknown"],
    "running": Meaning("running", "#56b4e9", "#7cc7f2", "started, not ended yet", "/"),
    "gap": Meaning("gap", "#d5d7da", "#4a4e55", "no span covers it", "x"),
}
"""What a trajectory's own time goes into, in the order of a step."""

PARTS: Final[dict[str, Meaning]] = {
    "held": PHASES["held"],
    "queued": STATES["queued"],
    "base": STATES["busy_decode"],
    "interference": Meaning("interference", "#56b4e9", "#7cc7f2", "others in the batch", "/"),
    "context": Meaning("context", "#0b3c5d", "#1f5f8f", "attention over what it said before", "."),
    "prefill": STATES["busy_prefill"],
    "recompute": Meaning("recompute", "#66c2a5", "#8fdcc2", "prompt read again", "x"),
    "tool": PHASES["tool"],
    "move": STATES["migration"],
    "orchestrator": STATES["orchestrator"],
    "unknown": STATES["unknown"],
    "unsplit": Meaning("decode, not split", "#9bbbd4", "#5f86a3", "no latency law is known", "\\"),
}
"""What a trajectory's whole time is split into, as the collector's `decomposition` has it."""

OTHER: Final = Meaning("other", "#d5d7da", "#4a4e55", "a state this page does not know")


@dataclass(frozen=True, slots=True)
class Ink:
    """The neutral colours of one mode."""

    text: str
    soft: str
    grid: str
    paper: str
    accent: str


INK: Final[dict[Mode, Ink]] = {
    "light": Ink("#1f2328", "#5b636d", "#e6e8eb", "#ffffff", "#0072b2"),
    "dark": Ink("#e6e8eb", "#a3abb5", "#2f353d", "#14171b", "#3b9bdc"),
}
SERIES: Final = ("busy_decode", "queued", "busy_prefill", "migration", "tool_wait", "weight_sync")
"""Hues for compared rollouts, the chosen one first."""


def meaning(state: str) -> Meaning:
    """Never raises: a state of a newer collector is drawn as `other`."""
    return STATES.get(state, OTHER)


def in_order(states: set[str]) -> list[str]:
    """Known states by precedence, unknown ones last by name."""
    known = [state for state in STATES if state in states]
    return known + sorted(states - STATES.keys())


def series(index: int, mode: Mode) -> str:
    """The hue of the index-th compared rollout; they repeat after six."""
    return STATES[SERIES[index % len(SERIES)]].colour(mode)


def seconds(value: float | None) -> str:
    """As a person says it: 180 ms, 4.2 s, 12 min 05 s, 3 h 20 min; a dash for nothing."""
    if value is None:
        return "–"
    if value < 0:
        return "−" + seconds(-value)
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 99.95:
        return f"{value:.1f} s"
    if value < 599.5:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


MEASURES: Final = {
    "output_tokens": "output tokens",
    "duration_s": "duration (s)",
    "steps": "steps",
    "tool_s": "time in tools (s)",
}
"""What a trajectory's length is measured in, with its unit."""


WHOLE: Final = ("output_tokens", "steps")
"""Of the measures, those that are counted."""


def spelled(measure: str) -> str:
    """A measure as an axis names it."""
    return MEASURES.get(measure, measure)


def nanoseconds(value: int | None) -> str:
    """`seconds` of a stored integer."""
    return seconds(None if value is None else value / 1e9)


def gpus(number: int | None) -> str:
    """`1 GPU`, `8 GPUs`, `? GPUs` where nobody told."""
    return "1 GPU" if number == 1 else f"{number or '?'} GPUs"


def count(value: float | None) -> str:
    """Tokens and the like: 950, 12.4k, 3.1M."""
    if value is None:
        return "–"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit * 0.9995:
            return f"{value / limit:.1f}{unit}"
    return f"{value:.0f}"


def gpu_seconds(gpu_ns: float | None) -> str:
    """GPU-nanoseconds as GPU-seconds, with k and M."""
    return "–" if gpu_ns is None else f"{count(gpu_ns / 1e9)} GPU-s"


PERCENT: Final = "%.1f %%"
"""The same in a column of a table, of hundredths: Streamlit's own `percent` writes 87.51%."""


def percent(share: float | None) -> str:
    """A share of one, as per cent."""
    return "–" if share is None else f"{share * 100:.1f} %"


def moment(at_ns: int | None, zone: str = "UTC") -> str:
    """An instant with its zone, to the millisecond; integers all the way, floats lose it."""
    if at_ns is None:
        return "–"
    whole, rest_ns = divmod(at_ns, 1_000_000_000)
    clock = datetime.fromtimestamp(whole, timezone.utc).astimezone(ZoneInfo(zone))
    return f"{clock:%Y-%m-%d %H:%M:%S}.{rest_ns // 1_000_000:03d} {clock:%Z}"
