"""The pages in a real browser on a real stack: collector, controller and an emulated fleet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import polars as pl
import pytest
from browser import screenshots
from browser.pages import settle, streamlit
from browser.real_stack import BAD, LEARN, RUN, Real, collecting, send_one
from playwright.sync_api import Browser, Page, expect

from heddle.app.supervise import free_port
from heddle.controller.wire import Acquire
from heddle.dashboards import nav, theme


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    opened = browser.new_page(viewport={"width": 1280, "height": 1600})
    yield opened
    opened.close()


def _open(page: Page, real: Real, path: str, **chosen: str) -> None:
    page.goto(f"{real.dashboard}/{path}?{urlencode({'run': RUN, **chosen})}")
    settle(page)
    assert page.locator('[data-testid="stException"]').count() == 0


def _metric(page: Page, label: str) -> str:
    found = page.get_by_test_id("stMetric").filter(has_text=label).first
    return found.get_by_test_id("stMetricValue").inner_text()


@pytest.mark.parametrize("path", [nav.path(page) for page in nav.PAGES])
def test_every_page_shows_a_real_rollout_and_asks_nobody_outside(
    page: Page, real: Real, path: str
) -> None:
    own, outside = real.dashboard.removeprefix("http"), list[str]()

    def watch(request: Any) -> None:
        if not request.url.startswith((f"http{own}", f"ws{own}", "data:", "blob:")):
            outside.append(request.url)

    page.on("request", watch)
    _open(page, real, path)
    assert outside == []
    if path not in ("predictor", "ask"):
        expect(page.get_by_text("emulated fleet, x60: times are fleet time")).to_be_visible()
    if path not in ("predictor", "policies", "fleet", "ask"):
        assert page.get_by_test_id("stPlotlyChart").count() >= 1


def test_numbers_on_the_pages_equal_what_the_services_say(page: Page, real: Real) -> None:
    rollout = real.collector.query("rollouts", run=RUN)["rollout_id"][0]
    chosen = {"run": RUN, "rollout": rollout}
    parts = real.collector.query("partition", **chosen)
    busy = parts.filter(pl.col("state").str.starts_with("busy"))["gpu_ns"].sum()
    _open(page, real, "", rollout=rollout)
    assert _metric(page, "Busy") == theme.percent(int(busy) / int(parts["gpu_ns"].sum()))
    tails = real.collector.query("tail", **chosen).filter(pl.col("metric") == "steps")
    _open(page, real, "tail", rollout=rollout, measure="steps")
    assert _metric(page, "Longest") == f"{tails['max'][0]:.0f}"
    _open(page, real, "idle", rollout=rollout)
    split = real.collector.query("efficiency", **chosen).row(0, named=True)
    assert _metric(page, "Effective") == theme.percent(
        split["effective_gpu_ns"] / split["total_gpu_ns"]
    )
    row = real.collector.query("trajectories", **chosen).row(0, named=True)
    _open(page, real, "trajectory", rollout=rollout, trajectory=row["trajectory_id"])
    assert _metric(page, "Steps") == str(row["steps"])
    assert _metric(page, "Output tokens") == theme.count(row["output_tokens"])
    _open(page, real, "compare", rollout=rollout)
    both = real.collector.query("rollouts", run=RUN).head(2)["makespan_s"]
    for makespan_s in both:
        expect(page.get_by_text(theme.seconds(makespan_s)).first).to_be_visible()
    _open(page, real, "policies", rollout=rollout)
    expect(page.get_by_text(f"{real.controller.switches(RUN).preset}").first).to_be_visible()
    fleet = real.controller.fleet()
    _open(page, real, "fleet")
    assert _metric(page, "Alive") == f"{len(fleet.workers)} / {len(fleet.workers)}"
    _open(page, real, "predictor")
    expect(page.get_by_text(f"{real.controller.predictor().version} serves")).to_be_visible()
    _open(page, real, "ask", sql="SELECT count(*) AS n FROM steps")
    expect(page.get_by_text("1 row.")).to_be_visible()


def test_a_policy_toggled_in_the_page_changes_the_next_decision(page: Page, real: Real) -> None:
    assert real.controller.switches(RUN).preset != "slime"
    _open(page, real, "policies")
    page.get_by_role("button", name="slime", exact=True).click()
    settle(page)
    page.get_by_label("Who", exact=True).fill("ada")
    page.get_by_label("Why", exact=True).fill("long tail")
    page.get_by_label("Why", exact=True).press("Tab")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("The choices above are the ones in force.")).to_be_visible()
    assert real.controller.switches(RUN).preset == "slime"
    change = max(real.controller.audit(), key=lambda entry: entry.version)
    assert (change.who, change.why) == ("ada", "long tail")
    wanted = real.controller.switches(RUN).switches["order"]
    taken = real.controller.acquire(Acquire(run=RUN, trajectory="asked-by-the-test", step=0))
    assert taken.granted
    newest = next(one for one in real.controller.decisions() if one["run"] == RUN)
    assert newest["order"] == wanted


@pytest.mark.long
def test_retraining_in_the_page_ends_in_a_verdict(page: Page, real: Real) -> None:
    _open(page, real, "predictor", run=LEARN)
    page.get_by_label("Who", exact=True).first.fill("ada")
    page.get_by_label("Why", exact=True).first.fill("first data")
    page.get_by_role("button", name="Train").click()
    ended = page.get_by_text("The last training", exact=False)
    expect(ended).to_be_visible(timeout=150_000)
    job = real.controller.jobs()[0]
    assert (job.state, job.asked.run, job.asked.who) == ("done", LEARN, "ada")
    state = real.controller.predictor()
    assert [one.version for one in state.versions] == [job.version]
    if job.accepted:
        expect(page.get_by_text("was accepted and serves now")).to_be_visible()
        assert state.version == job.version
    else:
        expect(page.get_by_text("was refused by the gate")).to_be_visible()
        expect(page.get_by_test_id("stDataFrame").nth(1)).to_be_visible()
        assert state.version != job.version


@pytest.mark.long
def test_a_what_if_replay_shows_its_progress_and_its_table(page: Page, real: Real) -> None:
    _open(page, real, "policies", whatif="verl,heddle")
    page.get_by_role("button", name="Replay under 2 presets").click()
    emulated = page.get_by_text("Emulated engines in virtual time")
    expect(emulated).to_be_visible(timeout=120_000)
    expect(page.get_by_role("button", name="again")).to_be_visible()


def test_markup_in_names_services_and_attribute_keys_is_text(page: Page, real: Real) -> None:
    for path in ("", "idle", "tail", "compare", "trajectory"):
        _open(page, real, path, run=BAD)
        assert page.locator('img[src="x"]').count() == 0
        assert page.locator('a[href^="javascript"]').count() == 0
        assert "owned" not in page.title()
    for tab in ("Tools and moves", "Spans"):
        page.get_by_role("tab", name=tab).click()
        settle(page)
    assert "owned" not in page.title()
    sql = "SELECT DISTINCT service, tool_name, CAST(attrs AS JSON)::VARCHAR AS a FROM spans"
    _open(page, real, "ask", sql=f"{sql} WHERE run_id = '{BAD}'")
    assert page.get_by_test_id("stDataFrame").count() == 2
    assert page.locator('img[src="x"]').count() == 0
    assert "owned" not in page.title()


def test_a_deep_link_restores_the_view(page: Page, real: Real) -> None:
    sql = "SELECT task, count(*) AS n FROM trajectories GROUP BY task ORDER BY task"
    _open(page, real, "ask", sql=sql, chart="points", table="rollouts", tab="Chart")
    assert page.get_by_label("One SELECT, DuckDB's dialect").input_value() == sql
    expect(page.get_by_test_id("stPlotlyChart")).to_be_visible()
    chosen = page.locator("input[role=combobox]").evaluate_all("all => all.map(e => e.value)")
    assert {"points", "rollouts"} <= set(chosen)


def test_a_killed_collector_shows_its_banner_and_the_page_recovers(
    page: Page, tmp_path: Path
) -> None:
    ports = free_port(), free_port(), free_port()
    address = f"http://127.0.0.1:{ports[1]}"
    banner = page.get_by_text("what you see may be out of date")
    with streamlit(address, address) as url:
        with collecting(tmp_path, ports) as collector:
            assert collector == address
            send_one(ports[0])
            page.goto(f"{url}/tail?run={RUN}")
            expect(page.get_by_text("Max / median", exact=True)).to_be_visible()
            settle(page)
        # Due in 5 s; a loaded machine may take longer to draw it.
        expect(banner).to_be_visible(timeout=9_000)
        expect(page.get_by_text("Max / median", exact=True)).to_be_visible()
        with collecting(tmp_path, ports):
            expect(banner).to_have_count(0, timeout=12_000)
        assert page.locator('[data-testid="stException"]').count() == 0


def test_a_page_is_used_by_keyboard_alone(page: Page, real: Real) -> None:
    _open(page, real, "")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.innerText") == "Long tail":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="The long tail")).to_be_visible()


def test_screenshots_can_be_taken_of_a_running_stack(
    real: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, browser: Browser
) -> None:
    monkeypatch.setattr(screenshots, "chromium", lambda: nullcontext(browser))
    there: list[Any] = ["--dashboard", real.dashboard, "--collector", real.stack.query_url]
    screenshots.main([*there, "--to", str(tmp_path), "--widths", "1280", "--", "ask"])
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == ["ask-dark.png", "ask-light.png", "report-dark.png", "report-light.png"]
