"""The controller's /metrics: what alerts watch is there, and says what a rollout showed."""

from __future__ import annotations

import re

import aiohttp

from heddle.controller.calibration import Calibration
from heddle.controller.core.types import Length


def drifted() -> Calibration:
    """Told 100 to 400 forty times, ten times longer each time."""
    known = Calibration()
    for i in range(48):
        known.predicted(f"t{i}", Length(p10=100, p50=200, p90=400, mean=220))
        known.ended(f"t{i}", 200 if i < 8 else 3_000, truncated=False)
    return known


async def test_alerts_of_the_controller_watch_metrics_that_it_tells(stack, pytestconfig):
    rules = (pytestconfig.rootpath / "docs/alerts.yml").read_text()
    wanted = set(re.findall("heddle_[a-z_]+", rules.partition("- name: heddle-controller")[2]))
    async with stack() as s, aiohttp.ClientSession(s.url) as http:
        s.loop.beliefs.calibrations['r"1'] = drifted()
        async with http.get("/metrics") as reply:
            text = await reply.text()
            assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert wanted
    assert not [name for name in wanted if f"# TYPE {name} " not in text]
    told = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines()
            if not line.startswith("#")}  # fmt: skip
    assert told['heddle_calibration_factor{run="r\\"1"}'] > 1.5
    assert told['heddle_calibration_ended{run="r\\"1"}'] == 48
    assert told['heddle_calibration_covered{run="r\\"1"}'] == 8
    assert told['heddle_predictor_serving{version="group-history"}'] == 1
