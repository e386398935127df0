"""What does a trained predictor answer, without torch?

Exported weights in one .npz, a forward pass in numpy equal to torch's to 1e-5. The network corrects
group history: with all weights zero it answers exactly what history does. Quantiles cannot cross:
p10 and p90 stand a positive factor away from p50. The mean is Swanson's rule, 0.3/0.4/0.3.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from heddle.collector.conventions import VERSION
from heddle.models.errors import ArtifactError
from heddle.models.features import FEATURES, Floats, columns_of, matrix
from heddle.models.history import GroupHistory
from heddle.models.lognormal import quantiles_many
from heddle.models.types import Length, Outlook, Query

PRIOR_AT: Final = tuple(
    [feature.name for feature in FEATURES].index(name)
    for name in ("prior_log_p50", "prior_log_low", "prior_log_high")
)
"""Where history's middle and its two log ratios stand in the matrix."""
STEPS_AT: Final = [feature.name for feature in FEATURES].index("steps_so_far")
STEPS_LEFT_AT: Final = [feature.name for feature in FEATURES].index("prior_steps_left")
X_LIMIT: Final = 4.0
"""Standard deviations at which features are clipped: beyond, only history's own line goes on."""
SHIFT_LIMIT: Final = 3.0
"""The network moves history's middle by at most a factor of e^3, about 20, and its line."""
RATIO_LIMIT: Final = 2.0
LEAST_RATIO: Final = 0.02
"""p90 stays at least 2 % above p50, so that widening can always be learned."""


@dataclass(frozen=True, slots=True)
class Weights:
    """An ensemble of E networks over F features with H hidden units; axis 0 is the network."""

    mean: Floats
    """(E, F) of the training features."""
    scale: Floats
    line: Floats
    """(E,) slope on how far history's middle is from its mean, beyond the one it has."""
    direct: Floats
    """(E, F, 3) linear path."""
    w1: Floats
    b1: Floats
    w2: Floats
    b2: Floats
    """(E, H, 3) and (E, 3): shift of the middle, log widening below, log widening above."""
    trust: Floats
    """(E, 3) how much of the correction holds at k = 0, 1 and later, 0 to 1."""
    widen: Floats
    """(2,) log factors on the spread below and above, set on held-out groups."""
    heads: Floats
    """(E, F + H + 1, 2) ln steps to come and ln seconds of the running tool, of the layers."""
    heads_trust: Floats
    """(3,) whether each of the two is served, and the usual ln tool seconds."""


def log_quantiles(weights: Weights, x: Floats) -> Floats:
    """ln of p10, p50, p90 of the remaining tokens, one row a row of the feature matrix."""
    return _log_quantiles(weights, x, *_layers(weights, x))


def log_outlook(weights: Weights, x: Floats) -> Floats:
    """ln of the steps to come (at least one) and of the running tool's seconds, a row a row."""
    return _log_outlook(weights, x, *_layers(weights, x))


def head_inputs(weights: Weights, x: Floats) -> Floats:
    """(E, rows, F + H + 1): standardised features, hidden units and a one."""
    z, hidden = _layers(weights, x)
    return np.concatenate([z, hidden, np.ones((*z.shape[:2], 1))], axis=2)


def simple_outlook(x: Floats, usual_tool: float) -> Floats:
    """The same from what is known without a network: history's steps, the usual tool."""
    so_far = np.expm1(x[:, STEPS_AT])
    whole = np.expm1(x[:, STEPS_LEFT_AT] + x[:, STEPS_AT])
    left = np.log(np.maximum(whole - so_far, 1.0))
    return np.stack([left, np.full(len(x), usual_tool)], axis=1)


def _layers(weights: Weights, x: Floats) -> tuple[Floats, Floats]:
    z = x[None] - weights.mean[:, None]
    z /= weights.scale[:, None]
    np.clip(z, -X_LIMIT, X_LIMIT, out=z)
    hidden = z @ weights.w1
    hidden += weights.b1[:, None]
    return z, np.tanh(hidden, out=hidden)


def _log_outlook(weights: Weights, x: Floats, z: Floats, hidden: Floats) -> Floats:
    f, h = z.shape[2], hidden.shape[2]
    told = z @ weights.heads[:, :f] + hidden @ weights.heads[:, f : f + h]
    learned = (told + weights.heads[:, -1:]).mean(axis=0)
    learned[:, 0] = np.maximum(learned[:, 0], 0.0)
    served = weights.heads_trust[:2] > 0
    return np.where(served, learned, simple_outlook(x, float(weights.heads_trust[2])))


def _log_quantiles(weights: Weights, x: Floats, z: Floats, hidden: Floats) -> Floats:
    raw = z @ weights.direct + hidden @ weights.w2 + weights.b2[:, None]
    at, low, high = PRIOR_AT
    trust = weights.trust[:, trust_at(x)]
    raw *= trust[..., None]
    off = trust * (x[None, :, at] - weights.mean[:, None, at]) * weights.line[:, None]
    shift = (np.clip(raw[..., 0], -SHIFT_LIMIT, SHIFT_LIMIT) + off).mean(axis=0)
    below, above = np.clip(raw[..., 1:], -RATIO_LIMIT, RATIO_LIMIT).mean(axis=0).T
    middle = x[:, at] + shift
    lowest = middle - np.maximum(x[:, low], LEAST_RATIO) * np.exp(below + weights.widen[0])
    highest = middle + np.maximum(x[:, high], LEAST_RATIO) * np.exp(above + weights.widen[1])
    return np.stack([lowest, middle, highest], axis=1)


def trust_at(x: Floats) -> NDArray[np.int64]:
    """Which of the three trusts a row uses: k = 0, 1 or later, from its ln(1 + k)."""
    return np.clip(np.rint(np.expm1(x[:, STEPS_AT])), 0, 2).astype(np.int64)


def lengths_of(log_q: Floats) -> list[Length]:
    """Lengths from log quantiles; at least one token, since the trajectory still runs."""
    tokens = np.exp(np.clip(log_q, 0.0, 60.0)).T
    means = np.array([0.3, 0.4, 0.3]) @ tokens
    return [*map(Length, *tokens.tolist(), means.tolist())]


class Learned:
    """The learned predictor: history, corrected by what the trajectory itself has shown.

    Keep telling the history it was given about siblings (`observe`, `survives`): it reads it live.
    """

    def __init__(self, weights: Weights, history: GroupHistory, version: str) -> None:
        self.version = version
        self.history = history
        self._weights = weights

    def predict(self, query: Query) -> Length:
        """Remaining output tokens of one trajectory."""
        return self.predict_many([query])[0]

    def predict_many(self, queries: Sequence[Query]) -> list[Length]:
        """The same for many, in their order; one forward pass."""
        if not queries:
            return []
        return lengths_of(log_quantiles(self._weights, self.features_of(queries)))

    def features_of(self, queries: Sequence[Query]) -> Floats:
        """The feature matrix; it reads history, which must not change meanwhile."""
        columns = columns_of(queries)
        return matrix(columns | self._priors(queries, columns["tokens_so_far"]))

    def outlook_many(self, queries: Sequence[Query]) -> list[Outlook]:
        """Tokens, steps and the running tool's seconds, in their order; one forward pass."""
        return self.outlook_of(self.features_of(queries), queries) if queries else []

    def outlook_of(self, x: Floats, queries: Sequence[Query]) -> list[Outlook]:
        """Of a feature matrix; safe in any thread."""
        layers = _layers(self._weights, x)
        lengths = lengths_of(_log_quantiles(self._weights, x, *layers))
        told = np.exp(np.clip(_log_outlook(self._weights, x, *layers), -20.0, 20.0)).tolist()
        # At admission no tool runs.
        return [
            Outlook(length, steps, tool_s if query.steps_so_far else 0.0)
            for length, (steps, tool_s), query in zip(lengths, told, queries, strict=True)
        ]

    def _priors(self, queries: Sequence[Query], so_far: Floats) -> dict[str, Floats]:
        mu, sigma, steps, samples = self.history.priors(queries)
        logs = np.log(np.maximum(quantiles_many(mu, sigma, so_far), 1.0))
        return {
            "prior_log_p10": logs[:, 0],
            "prior_log_p50": logs[:, 1],
            "prior_log_p90": logs[:, 2],
            "prior_samples": samples,
            "prior_steps": steps,
            "prior_mu": mu,
            "prior_sigma": sigma,
        }


def save(weights: Weights, path: Path) -> None:
    """One .npz with the arrays, the features' names in order and the conventions' version."""
    arrays = {field.name: getattr(weights, field.name) for field in fields(weights)}
    names = np.array([feature.name for feature in FEATURES])
    np.savez(path, **arrays, features=names, conventions=np.array(VERSION))


def load(path: Path) -> Weights:
    """The weights, or ArtifactError with one sentence saying why they cannot be served."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        message = f"{path.name} cannot be read as a predictor ({error}); train it again"
        raise ArtifactError(message) from error
    _check(arrays, path.name)
    return Weights(**{field.name: arrays[field.name] for field in fields(Weights)})


def _check(arrays: Mapping[str, Floats], name: str) -> None:
    wanted = {field.name for field in fields(Weights)} | {"features", "conventions"}
    if missing := sorted(wanted - set(arrays)):
        message = f"{name} lacks {', '.join(missing)}; it is no predictor of this version"
        raise ArtifactError(message)
    if (found := str(arrays["conventions"])) != VERSION:
        message = f"{name} was trained under conventions {found}, these are {VERSION}; train again"
        raise ArtifactError(message)
    if list(arrays["features"]) != [feature.name for feature in FEATURES]:
        message = f"{name} was trained on other features than this version makes; train it again"
        raise ArtifactError(message)
    if odd := _odd(arrays):
        message = f"{name} holds {odd} of another kind or shape than a predictor; train it again"
        raise ArtifactError(message)
    if not all(np.isfinite(arrays[field.name]).all() for field in fields(Weights)):
        message = f"{name} holds weights that are not finite; train it again"
        raise ArtifactError(message)


def _odd(arrays: Mapping[str, Floats]) -> str:
    """The first array that no forward pass could use; empty when all fit."""
    count, f = len(np.atleast_1d(arrays["mean"])), len(FEATURES)
    h = arrays["b1"].shape[-1] if arrays["b1"].ndim else 0
    shapes = {
        "mean": (count, f), "scale": (count, f), "line": (count,), "direct": (count, f, 3),
        "w1": (count, f, h), "b1": (count, h), "w2": (count, h, 3), "b2": (count, 3),
        "trust": (count, 3), "widen": (2,), "heads": (count, f + h + 1, 2), "heads_trust": (3,),
    }  # fmt: skip
    wrong = (
        name
        for name, shape in shapes.items()
        if not count or arrays[name].dtype.kind != "f" or arrays[name].shape != shape
    )
    return next(wrong, "")
