"""Do README's Python blocks do what README says of them, run as they stand?"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from heddle.collector.client import CollectorClient

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def stack(up, tmp_path_factory):
    with up(tmp_path_factory.mktemp("readme"), "--gpus", 2, "--speed", 20) as started:
        yield started


def run_block(stack, word):
    """The block that holds the word, at the stack's ports; nothing else is changed."""
    (block,) = [b for b in BLOCKS if word in b]
    here = block.replace("http://127.0.0.1:8600", stack.controller)
    here = here.replace("http://127.0.0.1:4318", stack.otlp)
    subprocess.run([sys.executable, "-c", here], check=True, timeout=60)


def eventually_one(stack, name, **filters):
    deadline = time.monotonic() + 30
    with CollectorClient(stack.queries) as client:
        while not (rows := client.query(name, run="my-run", **filters).to_dicts()):
            assert time.monotonic() < deadline, (name, filters)
            time.sleep(0.1)
    (row,) = rows
    return row


def test_every_block_is_run_by_a_test_here():
    assert len(BLOCKS) == 2


def test_an_openai_client_becomes_a_step_of_its_trajectory(stack):
    run_block(stack, "OpenAI(")
    step = eventually_one(stack, "steps", trajectory="prompt-12-3", state="finished")
    assert (step["rollout_id"], step["group_id"]) == ("7", "prompt-12")
    assert step["output_tokens"] > 0


def test_a_traced_tool_call_arrives_though_the_script_ends_at_once(stack):
    run_block(stack, "Tracer(")
    tool = eventually_one(stack, "tool_calls", tool="pytest")
    trajectory = eventually_one(stack, "trajectories", trajectory="prompt-12-3", state="finished")
    assert (tool["inferred"], tool["step_index"]) == (False, 0)
    assert trajectory["group_id"] == "prompt-12"
