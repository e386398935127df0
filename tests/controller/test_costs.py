"""Is what a change of the layout took remembered for that model, degree and method alone?"""

from __future__ import annotations

from heddle.controller.costs import METHODS, Costs
from heddle.controller.journal import Journal


def test_a_measured_cost_is_of_its_model_degree_and_method_and_survives_a_restart(tmp_path):
    path, (method, other, *_) = tmp_path / "journal", METHODS
    journal = Journal(path)
    costs = Costs(journal, "h100_sxm", "Qwen3-14B")
    usual = {key: costs.expected_s(*key) for key in ((2, method), (4, method), (2, other))}
    for seconds in (1_000.0, 3_000.0, 2_000.0):
        costs.learn(2, method, seconds)
    journal.close()
    again = Journal(path)
    kept = Costs(again, "h100_sxm", "Qwen3-14B")
    assert kept.expected_s(2, method) == 2_000.0
    assert kept.expected_s(4, method) == usual[4, method]
    assert kept.expected_s(2, other) == usual[2, other]
    assert Costs(again, "h100_sxm", "Qwen3-8B").measured() == {}
    again.close()
