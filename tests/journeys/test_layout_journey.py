"""The third lever by itself: lengths shift, the controller re-plans, a Ray cluster changes its
layout, and the rollout ends sooner than with the layout it began with."""

from __future__ import annotations

import asyncio

import pytest
import streamlit as st
from controller_processes import SPEED, processes, until
from streamlit.testing.v1 import AppTest

from heddle.app.driver import drive
from heddle.collector.client import CollectorClient
from heddle.collector.tracing import Emitter
from heddle.controller import wire
from heddle.controller.clock import Clock
from heddle.controller.emulator.workload import StepSpec, TrajectorySpec
from heddle.dashboards import facts

pytestmark = pytest.mark.ray

GPUS = 4
SHORT, LONG, LONGER = 4_000, 40_000, 100_000
"""Output tokens: 100,000 take 1,000 emulated seconds alone on one GPU, 370 on four: 12 s here, of
which the change takes 4 on a quiet machine."""


def work(rollout, longest):
    """Two of eight trajectories have the length that shifts."""
    lengths = [longest, longest, *([400] * 6)]
    return [
        TrajectorySpec(
            f"{rollout}-t{n}", f"g{n // 2}", n % 2, "math",
            (StepSpec(64, 40, "bash", 1.0), StepSpec(16, tokens, None, 0.0)),
        )
        for n, tokens in enumerate(lengths)
    ]  # fmt: skip


def play(p, client, run, rollout, longest):
    """One rollout to its end; what it began with and how long it took in emulated time."""
    specs = work(rollout, longest)
    groups = [
        wire.GroupIn(group=f"g{n}", samples=2, task="math", prompt_tokens=64) for n in range(4)
    ]
    asked = wire.RolloutBegin(run=run, rollout=rollout, expected=8, groups=groups)
    begun = client.begin_rollout(asked)
    emitter = Emitter(p.at("otlp"), service="test")
    result = asyncio.run(
        drive(
            specs, controller_url=p.at("controller"), emitter=emitter, run=run, rollout=rollout,
            clock=Clock(p.origin_ns, SPEED),
        )
    )  # fmt: skip
    emitter.close()
    ended = client.end_rollout(run, rollout)
    # A trainer's step stands between two rollouts; until then the collector has the lengths.
    with CollectorClient(p.at("queries")) as store:
        until(lambda: _stored(store, run, rollout) == len(specs))
    assert (result.finished, dict(result.errors)) == (8, {})
    return begun, ended.makespan_s


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(600)
def test_a_ray_fleet_changes_its_layout_by_itself_and_the_third_rollout_ends_sooner(
    tmp_path, cluster, monkeypatch
):
    ray, _ = cluster
    with processes(tmp_path) as p:
        p.collector()
        words = p.launching(GPUS)
        words[1] = words[1].replace("--port", "--host {host} --port")
        p.controller(*words, "--fleet", "ray", "--address", ray.address, RAY_AUTH_MODE="disabled")
        client = p.client()
        client.switch(run="frozen", preset="heddle", who="test", allocation="fixed-1")
        frozen, frozen_s = play(p, client, "frozen", "frozen-2", LONGER)
        client.switch(run="changing", preset="heddle", who="test")
        changing = [
            play(p, client, "changing", f"changing-{n}", tokens)
            for n, tokens in enumerate((SHORT, LONG, LONGER))
        ]
        fleet = client.fleet()
        layouts = [begun.layout for begun, _ in changing]
        assert frozen.layout == layouts[0] == [1] * GPUS
        assert max(layouts[2]) > 1, [begun.because for begun, _ in changing]
        with CollectorClient(p.at("queries")) as store:
            told = until(lambda: _story(store))
            account = store.query("partition", run="changing", rollout="changing-2")
        monkeypatch.setenv("HEDDLE_COLLECTOR", p.at("queries"))
        monkeypatch.setenv("HEDDLE_CONTROLLER", p.at("controller"))
        page = AppTest.from_function(_page, default_timeout=60).run()
        st.cache_resource.clear()
    assert changing[2][0].reallocated
    assert "after a change that costs" in changing[2][0].because
    # The same trajectories, and with the change inside its window.
    assert changing[2][1] < frozen_s
    # The page's story and the spans' are the same one.
    (story,) = [s for s in fleet.reallocations if s.wanted == layouts[2]]
    assert (story.state, story.before, story.after) == ("done", [1] * GPUS, layouts[2])
    assert story.gain_s > 1.25 * story.expected_s
    (shown,) = [t.value for t in page.dataframe if "longest" in t.value.columns]
    (row,) = shown[shown["gain_s"] == story.gain_s].to_dict("records")
    assert not page.exception
    assert (row["state"], row["before"]) == ("done", f"{GPUS} x TP1")
    assert row["after"] == facts.layout(",".join(map(str, layouts[2])))
    assert row["expected_s"] == pytest.approx(story.expected_s)
    assert row["took_s"] == pytest.approx((story.end_ns - story.start_ns) / 1e9)
    assert all(phase in row["longest"] for phase in ("drain", "stop", "launch", "flush"))
    assert any(story.because in text.value for text in page.text)
    whole, phases = told
    assert whole["name"] == "heddle.reallocate"
    assert {"stop", "launch", "flush", "rejoin"} <= {row["phase"] for row in phases}
    booked = account.filter(account["state"] == "reallocation")["gpu_ns"].sum()
    assert booked > 0


def _stored(store, run, rollout):
    found = store.query("trajectories", run=run, rollout=rollout)
    return found.filter((found["outcome"] == "finished") & (found["output_tokens"] > 0)).height


def _page():
    from heddle.dashboards.views import fleet

    fleet.page()


def _story(store):
    rows = store.sql(
        "SELECT name, op, CAST(attrs['heddle.phase'] AS VARCHAR) AS phase FROM spans"
        " WHERE run_id = 'changing' AND op IN ('heddle.reallocate', 'heddle.regroup')"
    ).to_dicts()
    whole = [row for row in rows if row["op"] == "heddle.reallocate"]
    phases = [row for row in rows if row["op"] == "heddle.regroup"]
    return (whole[-1], phases) if whole and len(phases) >= 8 else None
