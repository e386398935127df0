"""Does the planner's law say what the profile files say, in the units its names promise?"""

from __future__ import annotations

import csv
from importlib.resources import files

import pytest

from heddle.models.latency import LatencyError, load_profile


def rows(name: str):
    with (files("heddle.models.profiles") / name).open(encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def test_the_known_figures_of_14b_on_one_h100_come_out_in_seconds_and_tokens():
    law = load_profile("h100_sxm", "Qwen3-14B").law(1)
    assert law.kv_tokens == 254_881
    assert law.a_s == pytest.approx(0.011206)
    assert law.decode_s(1, 0) == pytest.approx(0.011206 + 0.000010296)
    assert law.decode_s(32, 32 * 8192) == pytest.approx(0.0253, rel=0.02)
    assert law.prefill_s(8192) == pytest.approx(0.3926, rel=0.15)


@pytest.mark.parametrize("system", ["h100_sxm", "h200_sxm"])
def test_every_decode_row_is_within_the_stated_worst_error(system):
    for row in rows(f"decode_{system}.csv"):
        law = load_profile(system, row["model"]).law(int(row["tp"]))
        batch, context = int(row["batch"]), int(row["ctx_start"]) + 32
        measured_s = float(row["tpot_ms"]) / 1e3
        assert law.decode_s(batch, batch * context) == pytest.approx(measured_s, rel=0.08)


def test_nothing_to_do_takes_no_time_and_more_never_takes_less():
    law = load_profile("h100_sxm", "Qwen3-8B").law(2)
    assert law.decode_s(0, 0) == 0.0
    assert law.prefill_s(0, 5000) == 0.0
    assert law.prefill_s(100, 5000) > law.prefill_s(100, 0)
    assert law.move_s(4000) > law.prefill_s(4000)
    assert law.interference(64, 64 * 4000) > law.interference(1, 4000) >= 1.0


def test_a_higher_degree_decodes_faster_wakes_sooner_and_holds_more():
    laws = [load_profile("h100_sxm", "Qwen3-32B").law(d) for d in (1, 2, 4, 8)]
    assert [law.a_s for law in laws] == sorted((law.a_s for law in laws), reverse=True)
    assert [law.kv_tokens for law in laws] == sorted(law.kv_tokens for law in laws)
    assert [law.wake_s for law in laws] == sorted((law.wake_s for law in laws), reverse=True)
    assert all(law.wake_s < law.load_s < law.launch_s for law in laws)


def test_an_organisation_before_the_model_name_is_ignored():
    assert load_profile("h100_sxm", "Qwen/Qwen3-14B").model == "Qwen3-14B"


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(LatencyError, match="known systems are h100_sxm, h200_sxm"):
        load_profile("tpu", "Qwen3-8B")
    with pytest.raises(LatencyError, match="known models are Qwen3-14B, Qwen3-32B, Qwen3-8B"):
        load_profile("h100_sxm", "Llama-3")
    with pytest.raises(LatencyError, match="degree 3; known degrees are 1, 2, 4, 8"):
        load_profile("h100_sxm", "Qwen3-8B").law(3)
