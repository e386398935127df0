"""Does a fit find the law behind timings, hold some of them out, and survive the way to a file?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.models import profiling
from heddle.models.latency import LatencyError, load_profile
from heddle.models.profiling import Decode, Fetch, Prefill, Subject

SUBJECT = Subject(
    system="cpu", model="tiny", degree=2, engine="sglang 0.5.23", kv_tokens=8192, max_running=48,
    chunk_tokens=4096, page_tokens=1, weight_bytes=7_000_000, kv_bytes_per_token=256,
    request_s=0.002, load_s=0.5, wake_s=None,
)  # fmt: skip
BATCHES, CONTEXTS = (1, 2, 3, 4, 8, 16), (64, 256, 1024)
NEW, PREFIXES = (64, 128, 256, 512), (0, 1000, 4000)


def decode(a: float, b: float, c: float) -> list[Decode]:
    return [
        Decode(level, batch, context, a + b * batch + c * batch * context)
        for level, context in enumerate(CONTEXTS)
        for batch in BATCHES
    ]


def prefill(p0: float, p1: float, p2: float) -> list[Prefill]:
    return [Prefill(n, x, p0 + p1 * n + p2 * n * (x + n / 2)) for x in PREFIXES for n in NEW]


SECONDS = st.floats(1e-4, 1e-1)


@given(SECONDS, st.one_of(st.just(0.0), SECONDS), st.floats(1e-8, 1e-5))
def test_the_law_behind_exact_timings_is_found_and_predicts_what_was_held_out(
    a: float, b: float, c: float
) -> None:
    fit = profiling.decode_fit(decode(a, b, c))
    assert fit.coefficients == pytest.approx((a, b, c), rel=1e-3, abs=1e-9)
    assert fit.held_worst < 1e-6
    assert fit.held_points == 2 * len(CONTEXTS)


def test_prefill_is_fitted_over_new_tokens_and_their_prefix() -> None:
    fit = profiling.prefill_fit(prefill(0.01, 1e-5, 2e-9))
    assert fit.coefficients == pytest.approx((0.01, 1e-5, 2e-9))
    assert fit.held_points == len(PREFIXES)


def test_no_coefficient_is_negative_whatever_was_timed() -> None:
    falling = [Decode(0, b, 64.0 * b, 0.1 / b) for b in BATCHES]
    assert min(profiling.decode_fit(falling).coefficients) >= 0


def test_points_held_out_do_not_reach_the_fit_that_is_tested_on_them() -> None:
    exact = decode(0.01, 0.001, 1e-6)
    wrong = [
        Decode(p.level, p.batch, p.context, p.seconds * (2 if p.batch in (2, 4) else 1))
        for p in exact
    ]
    fit = profiling.decode_fit(wrong)
    assert fit.held_mean == pytest.approx(0.5, abs=1e-6)


def test_too_few_points_are_refused() -> None:
    with pytest.raises(LatencyError, match="too few"):
        profiling.decode_fit(decode(0.01, 0.001, 1e-6)[:2])


def test_a_saved_profile_is_read_as_the_laws_it_holds(tmp_path: Path) -> None:
    fits = (
        profiling.decode_fit(decode(0.01, 0.001, 1e-6)),
        profiling.prefill_fit(prefill(0.01, 1e-5, 2e-9)),
    )
    document = profiling.profile_document(SUBJECT, *fits, version=3, measured_at="2026-11-30")
    path = tmp_path / "v0003.json"
    path.write_text(json.dumps(document))
    profile = load_profile(str(path), "org/tiny")
    law = profile.law(2)
    assert law.decode_s(4, 400) == pytest.approx(0.01 + 0.004 + 0.0004)
    assert law.prefill_s(100, 50) == pytest.approx(0.01 + 0.001 + 2e-9 * 100 * 100)
    assert (law.kv_tokens, law.load_s, law.launch_s) == (8192, 0.5, 36.5)
    # Not measured: the belief stays.
    assert law.wake_s == pytest.approx(0.5, abs=0.01)
    with pytest.raises(LatencyError, match="known models are tiny"):
        load_profile(str(path), "Qwen3-14B")


def test_a_profile_says_what_a_storage_took_a_token_where_something_was_fetched(
    tmp_path: Path,
) -> None:
    fits = (
        profiling.decode_fit(decode(0.01, 0.001, 1e-6)),
        profiling.prefill_fit(prefill(0.01, 1e-5, 2e-9)),
    )
    stored = replace(SUBJECT, storage="mooncake")
    fetched = [Fetch(512, 0.1), Fetch(2_048, 0.156)]
    told: list[tuple[str, float | None]] = []
    for name, points in (("with.json", fetched), ("without.json", [])):
        document = profiling.profile_document(stored, *fits, points, version=1, measured_at="now")
        (tmp_path / name).write_text(json.dumps(document))
        law = load_profile(str(tmp_path / name), "tiny").law(2)
        told.append((law.storage, law.fetch_token_s))
    # 0.256 s for 2,560 tokens: a long context counts for more than a short one.
    assert told == [("mooncake", pytest.approx(1e-4)), ("", None)]
    sweep = profiling.sweep_document(
        stored, decode(0.01, 0.001, 1e-6), prefill(0.01, 1e-5, 2e-9), fetched
    )
    assert sweep["fetch"] == {"tokens": [512, 2_048], "seconds": [0.1, 0.156]}


def test_a_file_that_is_no_profile_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    for content in ("{", "[]", "{}"):
        path.write_text(content)
        with pytest.raises(LatencyError, match=r"broken\.json is no profile"):
            load_profile(str(path), "tiny")
    with pytest.raises(LatencyError, match="is no profile"):
        load_profile(str(tmp_path / "absent.json"), "tiny")


def test_a_sweep_keeps_what_was_timed_line_by_line() -> None:
    document = profiling.sweep_document(
        SUBJECT, decode(0.01, 0.001, 1e-6), prefill(0.01, 1e-5, 2e-9)
    )
    assert document["format"] == profiling.SWEEP
    assert [line["context"] for line in document["decode"]] == list(CONTEXTS)
    assert document["decode"][1]["batches"] == list(BATCHES)
    assert document["decode"][1]["seconds"][2] == pytest.approx(0.01 + 0.003 + 3 * 256e-6)
    assert document["prefill"]["prefix"] == list(PREFIXES)
    assert document["prefill"]["seconds"][1][3] == pytest.approx(
        0.01 + 0.00512 + 2e-9 * 512 * 1256, rel=1e-5
    )
    assert profiling.digest(document) != profiling.digest({**document, "degree": 1})
