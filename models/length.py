"""Which network learns the remaining tokens, and how is it fitted?

- It corrects group history: zero weights answer what history answers, and training starts there.
- Three heads: shift of the middle, widening below, widening above; quantiles cannot cross.
- A linear path and a small tanh layer on clipped features; history's own line is not clipped, so
  lengths beyond the longest family seen extrapolate along it.
- Pinball loss on ln tokens; a truncated row is only punished for predicting less than it reached.

Needs torch, and is imported by training alone: `serve` answers with numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heddle.models.features import FEATURES, Floats
from heddle.models.serve import (
    LEAST_RATIO,
    PRIOR_AT,
    RATIO_LIMIT,
    SHIFT_LIMIT,
    STEPS_AT,
    X_LIMIT,
    Weights,
)

LEVELS: Final = (0.1, 0.5, 0.9)
CLEAR: Final = 0.05
"""A correction is kept where this quantile of its saving is above 0, stopping groups drawn again.
Chance alone passes in 1 to 11 % of 400 draws of 16 groups; the tests hold it to that."""
DRAWS: Final = 200
LEAST_GROUPS: Final = 5
"""Fewer stopping groups drawn again are too often all the same ones: 5 give 126 mixtures."""
TRUSTS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Examples:
    """Feature matrix, ln of the remaining tokens, whether that is only a lower bound, weight, and
    the number of the row's group."""

    x: Floats
    y: Floats
    censored: Floats
    weight: Floats
    group: NDArray[np.int64]

    def take(self, at: Any) -> Examples:
        """The rows of a mask or an index array."""
        return Examples(self.x[at], self.y[at], self.censored[at], self.weight[at], self.group[at])

    def tensors(self, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As float32 on the device."""
        x, y, censored, weight = (
            torch.tensor(a, dtype=torch.float32, device=device)
            for a in (self.x, self.y, self.censored, self.weight)
        )
        return x, y, censored, weight


class LengthNet(nn.Module):
    """ln of p10, p50, p90 from the feature matrix; the same arithmetic as `serve.log_quantiles`."""

    mean: Tensor
    scale: Tensor
    trust: Tensor

    def __init__(self, x: Floats, hidden: int) -> None:
        super().__init__()
        features = len(FEATURES)
        self.register_buffer("mean", torch.tensor(x.mean(axis=0), dtype=torch.float32))
        spread = np.where(x.std(axis=0) > 1e-6, x.std(axis=0), 1.0)
        self.register_buffer("scale", torch.tensor(spread, dtype=torch.float32))
        self.register_buffer("trust", torch.ones(3))
        self.line = nn.Parameter(torch.zeros(()))
        self.direct = nn.Parameter(torch.zeros(features, 3))
        self.w1 = nn.Parameter(torch.randn(features, hidden) / features**0.5)
        self.b1 = nn.Parameter(torch.zeros(hidden))
        self.w2 = nn.Parameter(torch.zeros(hidden, 3))
        self.b2 = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        """One row a row of x."""
        z = ((x - self.mean) / self.scale).clamp(-X_LIMIT, X_LIMIT)
        raw = z @ self.direct + torch.tanh(z @ self.w1 + self.b1) @ self.w2 + self.b2
        at, low, high = PRIOR_AT
        trust = self.trust[x[:, STEPS_AT].expm1().round().clamp(0, 2).long()]
        raw = raw * trust[:, None]
        off = trust * (x[:, at] - self.mean[at]) * self.line
        middle = x[:, at] + raw[:, 0].clamp(-SHIFT_LIMIT, SHIFT_LIMIT) + off
        below, above = raw[:, 1:].clamp(-RATIO_LIMIT, RATIO_LIMIT).exp().unbind(dim=1)
        lowest = middle - x[:, low].clamp(min=LEAST_RATIO) * below
        highest = middle + x[:, high].clamp(min=LEAST_RATIO) * above
        return torch.stack([lowest, middle, highest], dim=1)


def pinball(log_q: Tensor, y: Tensor, censored: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean over rows and levels; a censored row costs nothing above what it reached."""
    return (_row_losses(log_q, y, censored) * weight).sum() / weight.sum()


def _row_losses(log_q: Tensor, y: Tensor, censored: Tensor) -> Tensor:
    levels = torch.tensor(LEVELS, dtype=log_q.dtype, device=log_q.device)
    short = y[:, None] - log_q
    under = torch.relu(short) * levels
    over = torch.relu(-short) * (1.0 - levels) * (1.0 - censored[:, None])
    return (under + over).mean(dim=1)


@dataclass(frozen=True, slots=True)
class FitArgs:
    """How one network is fitted."""

    seed: int
    epochs: int
    hidden: int
    patience: int
    learning_rate: float
    weight_decay: float
    device: str


def fit(train: Examples, validation: Examples, args: FitArgs) -> tuple[LengthNet, float]:
    """The network of the epoch that was best on the validation groups, and its loss there.

    Epoch 0 is history itself: a network that only learns noise is returned unlearned.
    """
    torch.manual_seed(args.seed)
    net = LengthNet(train.x, args.hidden).to(args.device)
    optimizer = _AdamW(net, args.learning_rate, args.weight_decay)
    rows, held = train.tensors(args.device), validation.tensors(args.device)
    batch = min(max(len(train.y) // 20, 64), 2048)
    best, best_loss, waited = _state(net), _loss(net, held), 0
    for _ in range(args.epochs):
        _epoch(net, optimizer, rows, batch)
        loss = _loss(net, held)
        waited = 0 if loss < best_loss - 1e-5 else waited + 1
        if waited == 0:
            best, best_loss = _state(net), loss
        if waited > args.patience:
            break
    net.load_state_dict(best)
    _set_trust(net, held, validation.group)
    return net, best_loss


def _set_trust(net: LengthNet, rows: tuple[Tensor, ...], group: NDArray[np.int64]) -> None:
    """Keep of the correction at k = 0, 1 and later what clearly helped on the stopping groups.

    Where the network has nothing to say, at admission mostly, history's answer is left alone.
    """
    bucket = rows[0][:, STEPS_AT].expm1().round().clamp(0, 2)
    for place in range(3):
        at = bucket == place
        some = tuple(tensor[at] for tensor in rows)
        costs = {trust: _costs(net, some, place, trust) for trust in TRUSTS}
        best = min(TRUSTS, key=lambda trust: (float(costs[trust].sum()), trust))
        saved = costs[0.0] - costs[best]
        net.trust[place] = best if clearly_saves(saved, group[at.cpu().numpy()]) else 0.0


def _costs(net: LengthNet, rows: tuple[Tensor, ...], place: int, trust: float) -> Floats:
    """Each row's weighted loss at that trust."""
    x, y, censored, weight = rows
    net.trust[place] = trust
    with torch.no_grad():
        losses = _row_losses(net(x), y, censored) * weight
    return losses.cpu().numpy().astype(np.float64)


def clearly_saves(saved: Floats, group: NDArray[np.int64]) -> bool:
    """Whether the rows' savings stay above nothing when whole groups are drawn again."""
    if not len(saved):
        return False
    _, inverse = np.unique(group, return_inverse=True)
    sums = np.bincount(inverse, saved)
    if len(sums) < LEAST_GROUPS:
        return False
    drawn = np.random.default_rng(0).integers(0, len(sums), (DRAWS, len(sums)))
    return bool(np.quantile(sums[drawn].sum(axis=1), CLEAR) > 0.0)


def export(nets: Sequence[LengthNet]) -> Weights:
    """The networks as one ensemble of numpy arrays, without further heads."""
    names = ("mean", "scale", "trust", "line", "direct", "w1", "b1", "w2", "b2")
    arrays = {
        name: np.stack([getattr(net, name).detach().cpu().numpy() for net in nets])
        for name in names
    }
    made = {name: array.astype(np.float64) for name, array in arrays.items()}
    inputs = made["w1"].shape[1] + made["w1"].shape[2] + 1
    heads = np.zeros((len(nets), inputs, 2))
    return Weights(**made, widen=np.zeros(2), heads=heads, heads_trust=np.zeros(3))


class _AdamW:
    """AdamW on few small tensors. torch.optim imports torch._dynamo at its first use: 2 s of CPU,
    7 where no bytecode is cached, for a network that trains in less."""

    def __init__(self, net: nn.Module, rate: float, decay: float) -> None:
        self._rate, self._decay, self._step = rate, decay, 0
        parameters = list(net.parameters())
        self._all = [(p, torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Move along the gradients, and forget them."""
        self._step += 1
        rate = self._rate / (1.0 - 0.9**self._step)
        for p, mean, square in self._all:
            if p.grad is None:
                continue
            mean.lerp_(p.grad, 0.1)
            square.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
            spread = (square / (1.0 - 0.999**self._step)).sqrt_().add_(1e-8)
            p.mul_(1.0 - self._rate * self._decay).addcdiv_(mean, spread, value=-rate)
            p.grad = None


def _epoch(net: LengthNet, optimizer: _AdamW, rows: tuple[Tensor, ...], batch: int) -> None:
    for at in torch.randperm(len(rows[1])).split(batch):
        x, y, censored, weight = (tensor[at] for tensor in rows)
        pinball(net(x), y, censored, weight).backward()
        optimizer.step()


def _loss(net: LengthNet, rows: tuple[Tensor, ...]) -> float:
    x, y, censored, weight = rows
    with torch.no_grad():
        return float(pinball(net(x), y, censored, weight))


def _state(net: LengthNet) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}
