"""Does the compiled engine do what the one in pure Python does, bit for bit?

`make test-compiled` builds it and puts it in front of the clone; the clone's own is asked in a
process that does not see the build.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
import tomllib

HERE = Path(__file__).parent
PYPROJECT = HERE.parents[1] / "pyproject.toml"
NAMES = tomllib.loads(PYPROJECT.read_text())["tool"]["heddle"]["compiled"]


def played(**env: str) -> dict:
    command = [sys.executable, "-P", str(HERE / "played.py")]
    out = subprocess.run(command, env={**os.environ, **env}, capture_output=True, check=True)
    return json.loads(out.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_each_module_that_the_build_names_is_compiled(name):
    assert (import_module(name).__file__ or "").endswith(tuple(EXTENSION_SUFFIXES))


def test_rollouts_of_both_builds_are_equal_bit_for_bit():
    ours, pure = played(), played(PYTHONPATH="")
    assert not ours["engine"].endswith(".py")
    assert pure["engine"].endswith(".py")
    assert ours["played"] == pure["played"]
    retracted = {name for name, (_, retractions) in ours["played"].items() if retractions}
    assert {"short of KV", "preempting"} <= retracted
