"""The exported network answers as torch does, starts as history, and refuses what is broken."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.models import serve
from heddle.models.errors import ArtifactError
from heddle.models.features import FEATURES
from heddle.models.history import GroupHistory
from heddle.models.length import LengthNet, export, pinball
from heddle.models.types import Query


def random_matrix(seed: int, rows: int = 64) -> np.ndarray:
    x = np.random.default_rng(seed).normal(5.0, 2.0, (rows, len(FEATURES)))
    _, low, high = serve.PRIOR_AT
    x[:, [low, high]] = np.abs(x[:, [low, high]])
    return x


def random_net(seed: int, hidden: int = 5) -> LengthNet:
    torch.manual_seed(seed)
    net = LengthNet(random_matrix(seed + 1), hidden)
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(torch.randn_like(weight) * 0.3)
    return net


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000))
def test_numpy_answers_as_torch_to_five_digits(seed):
    net, x = random_net(seed), random_matrix(seed + 7)
    with torch.no_grad():
        wanted = net(torch.tensor(x, dtype=torch.float32)).double().numpy()
    assert serve.log_quantiles(export([net]), x) == pytest.approx(wanted, rel=1e-5, abs=1e-5)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000))
def test_quantiles_never_cross_whatever_the_weights(seed):
    nets = [random_net(seed + i) for i in range(3)]
    weights = replace(export(nets), widen=np.array([0.3, -0.3]))
    q = serve.log_quantiles(weights, random_matrix(seed) * 20.0)
    assert (q[:, 0] < q[:, 1]).all()
    assert (q[:, 1] < q[:, 2]).all()


@pytest.mark.parametrize("line", [0.0, 0.4])
def test_beyond_every_length_it_was_taught_the_answer_goes_on_along_historys_line(line):
    net = random_net(3)
    with torch.no_grad():
        net.line.fill_(line)
    at, weights = serve.PRIOR_AT[0], export([net])
    x = random_matrix(4, rows=1)
    # Both are beyond where features are clipped: only history's own middle differs.
    x[:, at] = weights.mean[0, at] + (serve.X_LIMIT + 1.0) * weights.scale[0, at]
    further = x.copy()
    further[:, at] += 5.0
    grown = serve.log_quantiles(weights, further) - serve.log_quantiles(weights, x)
    assert grown == pytest.approx(np.full((1, 3), 5.0 * (1.0 + line)))


def test_an_untrained_network_says_what_history_says():
    history = GroupHistory()
    for total in (900, 1_100, 2_000):
        history.observe("g", total)
    query = Query(group="g", prompt_tokens=50, tokens_so_far=300, steps_so_far=2)
    learned = serve.Learned(export([LengthNet(random_matrix(0), 4)]), history, "v")
    asked, known = learned.predict(query), history.predict(query)
    assert (asked.p10, asked.p50, asked.p90) == pytest.approx((known.p10, known.p50, known.p90))
    assert learned.predict_many([]) == []


def test_a_finished_sibling_moves_the_learned_prediction_at_once():
    history = GroupHistory()
    learned = serve.Learned(export([LengthNet(random_matrix(0), 4)]), history, "v")
    before = learned.predict(Query(group="g")).p50
    history.observe("g", 50_000)
    assert learned.predict(Query(group="g")).p50 > before


def test_a_censored_row_costs_nothing_above_what_it_reached():
    q = torch.tensor([[1.0, 2.0, 3.0]])
    one, y = torch.ones(1), torch.tensor([0.5])
    assert float(pinball(q, y, one, one)) == 0.0
    assert float(pinball(q, y, torch.zeros(1), one)) > 0.0
    assert float(pinball(q, torch.tensor([5.0]), one, one)) > 0.0


def test_saved_weights_come_back_equal(tmp_path):
    weights = replace(export([random_net(1), random_net(2)]), widen=np.array([0.1, 0.2]))
    serve.save(weights, tmp_path / "w.npz")
    x = random_matrix(3)
    again = serve.log_quantiles(serve.load(tmp_path / "w.npz"), x)
    assert np.array_equal(again, serve.log_quantiles(weights, x))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda a: a.pop("w1"), "lacks w1"),
        (lambda a: a.update(conventions=np.array("0")), "conventions 0"),
        (lambda a: a.update(features=np.array(["x"])), "other features"),
        (lambda a: a.update(b2=a["b2"] * np.nan), "not finite"),
        (lambda a: a.update(w1=a["w1"][:, :3]), "holds w1 of another kind or shape"),
        (lambda a: a.update(line=np.array(["x"])), "holds line of another kind or shape"),
        (lambda a: a.update(b1=np.float64(0.0)), "holds w1 of another kind or shape"),
        (lambda a: a.update(mean=a["mean"][:0]), "holds mean of another kind or shape"),
    ],
)
def test_a_broken_artifact_is_refused_with_its_reason(tmp_path, spoil, sentence):
    path = tmp_path / "w.npz"
    serve.save(export([random_net(1)]), path)
    with np.load(path) as stored:
        arrays = dict(stored)
    spoil(arrays)
    np.savez(path, **arrays)
    with pytest.raises(ArtifactError, match=sentence):
        serve.load(path)


def test_a_half_written_file_is_refused_with_a_sentence(tmp_path):
    path = tmp_path / "w.npz"
    serve.save(export([random_net(1)]), path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ArtifactError, match="cannot be read as a predictor"):
        serve.load(path)


def test_serving_and_the_registry_never_import_torch():
    code = (
        "import sys, heddle.models.serve, heddle.models.registry, heddle.models.history\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
