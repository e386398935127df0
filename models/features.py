"""What does the learned predictor look at, in which unit, and who knows it at that moment?

Everything is known when step k - 1 has ended and its tool has been called: counts and tokens of
steps before k, tools that have ended, and what group history says. `n_steps`, `truncated`,
`outcome` and `reward` are the answer and never features. The same function serves training (columns
of a frame) and serving (columns of queries).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from heddle.models.lognormal import quantiles_many
from heddle.models.types import Query

Floats = NDArray[np.float64]
TOOL_BUCKETS: Final = 8


@dataclass(frozen=True, slots=True)
class Feature:
    """One column of the matrix; `source` is the Query field or who else knows it."""

    name: str
    unit: str
    source: str


LOGGED: Final = (
    Feature("prompt_tokens", "ln(1 + tokens)", "input tokens of step 0"),
    Feature("context_tokens", "ln(1 + tokens)", "input + output of the latest step"),
    Feature("tokens_so_far", "ln(1 + tokens)", "output of all finished steps"),
    Feature("steps_so_far", "ln(1 + steps)", "finished steps, k"),
    Feature("last_output_tokens", "ln(1 + tokens)", "output of the latest step"),
    Feature("max_output_tokens", "ln(1 + tokens)", "largest output of a finished step"),
    Feature("last_observation_tokens", "ln(1 + tokens)", "appended before the latest step"),
    Feature("tool_calls_so_far", "ln(1 + calls)", "tool calls that have ended"),
    Feature("tool_s_so_far", "ln(1 + s)", "seconds in tool calls that have ended"),
    Feature("last_tool_s", "ln(1 + s)", "seconds of the latest tool call that has ended"),
    Feature("errors_so_far", "ln(1 + calls)", "ended tool calls that failed"),
    Feature("prior_samples", "ln(1 + samples)", "finished samples of the group (history)"),
)
"""Taken as ln(1 + value)."""

PLAIN: Final = (
    Feature("mean_output_tokens", "ln(1 + tokens)", "tokens_so_far / steps_so_far"),
    Feature("last_error", "0 or 1", "the latest tool call that has ended failed"),
    Feature("prior_log_p50", "ln tokens", "remaining by group history, survival-corrected"),
    Feature("prior_log_low", "ln ratio", "history's p50 over its p10"),
    Feature("prior_log_high", "ln ratio", "history's p90 over its p50"),
    Feature("prior_steps_left", "ln ratio", "history's mean steps over steps so far, both + 1"),
    Feature(
        "prior_step_path",
        "ln ratio",
        "remaining by history's steps and tokens a step, over its remaining tokens",
    ),
    Feature(
        "prior_steps_survived",
        "ln ratio",
        "remaining by history, given that it gets beyond its steps so far at that pace, over "
        "prior_log_p50",
    ),
    *(
        Feature(f"tool_{i}", "0 or 1", "latest tool called, by hash of its name")
        for i in range(TOOL_BUCKETS)
    ),
)

FEATURES: Final = LOGGED + PLAIN
PRIOR: Final = (
    "prior_log_p10", "prior_log_p50", "prior_log_p90", "prior_samples", "prior_steps", "prior_mu",
    "prior_sigma",
)  # fmt: skip
"""What history adds to the columns of a query; `prior_steps` is 0 where it has none, mu and sigma
are of ln total tokens."""
OWN_PACE: Final = 4.0
"""Steps after which a trajectory's own tokens a step count as much as its siblings': within one
they vary by 0.7 (log), between trajectories of a group by 0.2 to 0.3."""
NEXT_STEP: Final = 0.5
"""Of a step's usual tokens, the least that one which still runs will write."""
PATH_LIMIT: Final = 3.0
MOST: Final = 1e15
"""Tokens, steps or seconds that nobody exceeds."""
MIDDLE: Final = (0.5,)
COLUMNS: Final = (
    "prompt_tokens", "context_tokens", "tokens_so_far", "steps_so_far", "last_output_tokens",
    "max_output_tokens", "last_observation_tokens", "tool_calls_so_far", "tool_s_so_far",
    "last_tool_s", "errors_so_far", "last_error",
)  # fmt: skip
"""Numeric fields of a Query that features are made from; the tool's name comes as `tool_bucket`."""
_FIELDS: Final = itemgetter(*map(Query._fields.index, COLUMNS))
_TOOL: Final = Query._fields.index("last_tool")


@lru_cache(maxsize=1024)
def tool_bucket(name: str | None) -> int:
    """Which of the buckets a tool's name hashes to; -1 for no tool or an unknown one."""
    return crc32(name.encode("utf-8", "replace")) % TOOL_BUCKETS if name else -1


def columns_of(queries: Sequence[Query]) -> dict[str, Floats]:
    """The queries' fields as arrays, the tool's name as its bucket; of one query at least."""
    told = list(zip(*queries, strict=True))
    table = np.array(_FIELDS(told), dtype=np.float64)
    # A client's seconds may be anything; one of them must not spoil the batch.
    np.clip(np.nan_to_num(table, copy=False), 0.0, MOST, out=table)
    columns: dict[str, Floats] = dict(zip(COLUMNS, table, strict=True))
    columns["tool_bucket"] = np.array([float(tool_bucket(name)) for name in told[_TOOL]])
    return columns


def matrix(columns: Mapping[str, Floats]) -> Floats:
    """One row a question, one column a feature, in the order of FEATURES."""
    steps, middle = columns["steps_so_far"], columns["prior_log_p50"]
    out = np.empty((len(steps), len(FEATURES)))
    for at, feature in enumerate(LOGGED):
        out[:, at] = columns[feature.name]
    known = columns["prior_steps"] > 0
    logged = len(LOGGED)
    out[:, logged] = columns["tokens_so_far"] / np.maximum(steps, 1.0)
    np.log1p(np.maximum(out[:, : logged + 1], 0.0), out=out[:, : logged + 1])
    expected = np.log1p(columns["prior_steps"]) - np.log1p(steps)
    plain = [
        columns["last_error"],
        middle,
        middle - columns["prior_log_p10"],
        columns["prior_log_p90"] - middle,
        expected * known,
        *_by_steps(columns, known),
    ]
    for at, column in enumerate(plain, start=logged + 1):
        out[:, at] = column
    out[:, -TOOL_BUCKETS:] = columns["tool_bucket"][:, None] == np.arange(TOOL_BUCKETS)
    return out


def _by_steps(columns: Mapping[str, Floats], known: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """`prior_step_path` and `prior_steps_survived`: who has taken k steps has more than k.

    The one lets steps survive as tokens do; the other tokens, beyond those that k steps usually
    take: few tokens may be many short steps or few long ones. A step writes as many as the
    group's, or by and by as its own.
    """
    k, so_far, mu, sigma = (
        columns[name] for name in ("steps_so_far", "tokens_so_far", "prior_mu", "prior_sigma")
    )
    whole, half = np.log(np.where(known, columns["prior_steps"], 1.0)), sigma**2 / 2
    theirs = mu + half - whole
    own = np.log(np.maximum(so_far, 1.0) / np.maximum(k, 1.0))
    pace = theirs + k / (k + OWN_PACE) * (own - theirs)
    left = quantiles_many(whole - half, sigma, k, MIDDLE)[:, 0]
    # At admission it has got beyond nothing yet.
    least = np.where(k > 0, np.maximum((k + NEXT_STEP) * np.exp(pace), so_far), 0.0)
    beyond = quantiles_many(mu, sigma, least, MIDDLE)[:, 0] + least - so_far
    paths = (np.log(np.maximum(left, 1.0)) + pace, np.log(np.maximum(beyond, 1.0)))
    offs = [np.clip(p - columns["prior_log_p50"], -PATH_LIMIT, PATH_LIMIT) for p in paths]
    step_path, survived = (np.where(known, off, 0.0) for off in offs)
    return step_path, survived


def documented() -> str:
    """The table of features, Markdown."""
    rows = [f"| {f.name} | {f.unit} | {f.source} |" for f in FEATURES]
    return "\n".join(["| feature | unit | known from |", "|---|---|---|", *rows])
