"""Which shapes of agentic work can be generated, and from which published figures?

Frozen data only. Every law is log-normal; targets are the tail statistics of public agent logs.
The group effect is drawn, not recorded: no public log has 16 samples of one prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A positive quantity by its median and the standard deviation of its logarithm."""

    median: float
    sigma: float


@dataclass(frozen=True, slots=True)
class ToolLaw:
    """One tool: how often it is called, how long it takes (a mixture), what it returns."""

    name: str
    weight: float
    seconds: tuple[tuple[float, LogNormal], ...]
    observation: LogNormal
    synthetic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One kind of work; `between_share` is the part of the log-variance that is the prompt's."""

    name: str
    task: str
    prompt: LogNormal
    output: LogNormal
    between_share: float
    tokens_a_step: LogNormal
    max_steps: int
    max_output_tokens: int
    max_context_tokens: int
    tools: tuple[ToolLaw, ...]
    tool_floor_s: float
    tool_cap_s: float
    reset_share: float = 0.0


def _one(median: float, sigma: float) -> tuple[tuple[float, LogNormal], ...]:
    return ((1.0, LogNormal(median, sigma)),)


# agentcgroup: Bash median 6.9 s, p90 10.9, p99 28, max 308; Read, Edit, Grep 0.01-0.03 s.
_BASH_S: Final = ((0.93, LogNormal(6.6, 0.33)), (0.07, LogNormal(15.0, 0.75)))

_DEMO = Preset(
    name="demo",
    task="demo",
    prompt=LogNormal(600, 0.4),
    output=LogNormal(4_200, 0.72),
    between_share=0.6,
    tokens_a_step=LogNormal(480, 0.35),
    max_steps=40,
    max_output_tokens=20_000,
    max_context_tokens=32_000,
    tools=(
        ToolLaw("read_file", 0.40, _one(0.12, 0.5), LogNormal(260, 0.7)),
        ToolLaw("run_tests", 0.25, ((0.8, LogNormal(2.5, 0.6)), (0.2, LogNormal(9.0, 0.6))),
                LogNormal(160, 0.7)),
        ToolLaw("edit", 0.20, _one(0.08, 0.4), LogNormal(60, 0.5)),
        ToolLaw("search", 0.15, _one(0.9, 0.7), LogNormal(320, 0.6)),
    ),
    tool_floor_s=0.05,
    tool_cap_s=20.0,
)  # fmt: skip

# Steps and outputs after agentcgroup (median 34 steps, 6.4k output, max 61k) and terminal_bench.
_CODING = Preset(
    name="coding",
    task="coding",
    prompt=LogNormal(1_800, 0.5),
    output=LogNormal(7_500, 0.75),
    between_share=0.6,
    tokens_a_step=LogNormal(260, 0.45),
    max_steps=120,
    max_output_tokens=40_000,
    max_context_tokens=120_000,
    tools=(
        ToolLaw("bash", 0.45, _BASH_S, LogNormal(350, 1.0)),
        ToolLaw("read", 0.30, _one(0.02, 0.5), LogNormal(650, 0.9)),
        ToolLaw("edit", 0.15, _one(0.02, 0.4), LogNormal(120, 0.6)),
        ToolLaw("grep", 0.10, _one(0.03, 0.6), LogNormal(250, 0.9)),
    ),
    tool_floor_s=0.005,
    tool_cap_s=310.0,
    reset_share=0.009,
)

# Long observations and short answers: where prefix reuse decides (planning.md B.3, search cells).
_SEARCH = Preset(
    name="search",
    task="search",
    prompt=LogNormal(900, 0.4),
    output=LogNormal(6_000, 0.8),
    between_share=0.65,
    tokens_a_step=LogNormal(420, 0.4),
    max_steps=60,
    max_output_tokens=40_000,
    max_context_tokens=120_000,
    tools=(
        ToolLaw("search", 0.6, _one(0.8, 0.5), LogNormal(1_500, 0.5)),
        ToolLaw("fetch", 0.4, ((0.85, LogNormal(1.2, 0.7)), (0.15, LogNormal(6.0, 0.9))),
                LogNormal(2_600, 0.7)),
    ),
    tool_floor_s=0.05,
    tool_cap_s=60.0,
)  # fmt: skip

_MATH = Preset(
    name="math",
    task="math",
    prompt=LogNormal(250, 0.4),
    output=LogNormal(9_000, 0.8),
    between_share=0.7,
    tokens_a_step=LogNormal(2_400, 0.5),
    max_steps=24,
    max_output_tokens=40_000,
    max_context_tokens=64_000,
    tools=(ToolLaw("python", 1.0, ((0.85, LogNormal(0.25, 0.8)), (0.15, LogNormal(4.0, 0.9))),
                   LogNormal(120, 0.9)),),
    tool_floor_s=0.02,
    tool_cap_s=30.0,
)  # fmt: skip

# Context growth after the upper half of kv_cache_tester (p50 655, p90 3.6k, p99 16.6k) as far
# as the models' window of 131,072 tokens: the logs have longer contexts, no engine takes them.
_PREFILL = Preset(
    name="prefill-heavy",
    task="prefill-heavy",
    prompt=LogNormal(8_000, 0.5),
    output=LogNormal(1_600, 0.7),
    between_share=0.5,
    tokens_a_step=LogNormal(130, 0.4),
    max_steps=50,
    max_output_tokens=10_000,
    max_context_tokens=120_000,
    tools=(ToolLaw("retrieve", 1.0, _one(1.0, 0.8), LogNormal(3_600, 0.8)),),
    tool_floor_s=0.05,
    tool_cap_s=60.0,
    reset_share=0.009,
)

PRESETS: Final[dict[str, Preset]] = {p.name: p for p in (_DEMO, _CODING, _SEARCH, _MATH, _PREFILL)}
