"""What has a trajectory looked like so far, as a length predictor asks for it?

Sums over finished steps and ended tool intervals, as seen from here: one interval counts as one
tool call, its name and whether it failed are not known to the controller.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Shape:
    """Grows with each step and each tool interval."""

    last_output_tokens: int = 0
    max_output_tokens: int = 0
    last_observation_tokens: int = 0
    tool_calls: int = 0
    tool_s: float = 0.0
    last_tool_s: float = 0.0

    def stepped(self, context_before: int, input_tokens: int, output_tokens: int) -> None:
        """A step ended; what its input had beyond the context before it was observed."""
        if context_before:
            gained = input_tokens - context_before
            self.last_observation_tokens = gained if gained > 0 else 0
        self.last_output_tokens = output_tokens
        if output_tokens > self.max_output_tokens:
            self.max_output_tokens = output_tokens

    def tool_ended(self, tool_s: float) -> None:
        """A tool interval ended."""
        self.tool_calls += 1
        self.last_tool_s = tool_s = tool_s if tool_s > 0.0 else 0.0
        self.tool_s += tool_s
