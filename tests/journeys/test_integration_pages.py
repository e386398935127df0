"""Do the three commands at the head of each integration page end with spans in the store?"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from heddle.collector.client import CollectorClient

PAGES = Path(__file__).parents[2] / "docs/integrations"
FIRST = re.compile(r"```sh\n(.*?)```", re.DOTALL)
ENDS = {
    "openai.md": ("openai_agent.py", "controller", "default", 4, 12),
    "slime.md": ("slime_client.py", "controller", "default", 4, 8),
    "others.md": ("traced_trainer.py", "otlp", "my-run", 4, 8),
}
"""Script, what it is given, the run it fills, trajectories and steps."""


@pytest.fixture(scope="module")
def stack(up, tmp_path_factory):
    with up(tmp_path_factory.mktemp("pages"), "--gpus", 2, "--speed", 20) as started:
        yield started


@pytest.mark.parametrize("page", ENDS)
def test_a_page_begins_with_three_commands_the_last_its_example(page):
    lines = FIRST.search((PAGES / page).read_text())[1].strip().splitlines()
    assert lines == [
        "make setup",
        ".venv/bin/heddle up &",
        f".venv/bin/python docs/integrations/{ENDS[page][0]}",
    ]


def test_verls_page_begins_with_a_stack_that_waits_for_verls_engines():
    """What its third command sets runs in tests/verl."""
    lines = FIRST.search((PAGES / "verl.md").read_text())[1].replace("\\\n", "").splitlines()
    assert lines[:2] == ["make setup", ".venv/bin/heddle up --open-registration &"]
    assert lines[2].startswith("python3 -m verl.trainer.main_ppo")
    assert len(lines) == 3


@pytest.mark.parametrize("page", ENDS)
def test_the_example_becomes_trajectories_steps_and_groups(stack, page):
    script, where, run, trajectories, steps = ENDS[page]
    before = 0
    with CollectorClient(stack.queries) as client:
        before = client.query("steps", run=run, state="finished", limit=1000).height
        subprocess.run(
            [sys.executable, PAGES / script, getattr(stack, where)], check=True, timeout=120
        )
        deadline = time.monotonic() + 30
        prefix = script.split("_")[0]
        while True:
            done = client.query("steps", run=run, state="finished", limit=1000)
            found = client.query("trajectories", run=run, limit=1000).to_dicts()
            mine = [t for t in found if t["trajectory_id"].startswith(prefix)]
            if done.height - before >= steps and len(mine) >= trajectories:
                break
            assert time.monotonic() < deadline, (done.height, mine)
            time.sleep(0.2)
    assert len(mine) == trajectories
    assert len({t["group_id"] for t in mine}) == 1
    assert None not in {t["group_id"] for t in mine}
