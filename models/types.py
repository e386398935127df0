"""What is asked of a length predictor, and what does it answer?

Plain frozen values, standard library only: the controller builds a `Query` from what it saw of a
trajectory and gets the output tokens still to come. They know nothing of models or history.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Length(NamedTuple):
    """REMAINING output tokens of one trajectory: p10 <= p50 <= p90, and the expected value.

    A calibrated one holds the truth between p10 and p90 in 80 % of cases.
    """

    p10: float
    p50: float
    p90: float
    mean: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is still to come of one trajectory: tokens, steps, and the tool that runs now."""

    length: Length
    steps: float
    """LLM calls still to come, the next one included."""
    tool_s: float
    """Seconds of the tool call under way; at admission there is none."""


class Query(NamedTuple):
    """What is known of a trajectory after `steps_so_far` steps (0 = at admission), nothing later.

    `tokens_so_far` counts output tokens of finished steps; `context_tokens` prompt, outputs and
    observations together. Tool facts cover the calls that have ended, so a prediction asked in the
    tool interval leaves the call that still runs out.
    """

    group: str
    run: str = ""
    task: str | None = None
    trajectory: str = ""
    sample: int | None = None
    prompt_tokens: int = 0
    context_tokens: int = 0
    tokens_so_far: int = 0
    steps_so_far: int = 0
    last_output_tokens: int = 0
    max_output_tokens: int = 0
    last_observation_tokens: int = 0
    tool_calls_so_far: int = 0
    tool_s_so_far: float = 0.0
    last_tool: str | None = None
    last_tool_s: float = 0.0
    errors_so_far: int = 0
    last_error: bool = False
