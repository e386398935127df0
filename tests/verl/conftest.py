"""One fleet for everything here: starting it costs as much as the tests."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from controller_processes import Processes

ENGINES = ("w0", "w1")


@pytest.fixture(scope="session")
def stack(tmp_path_factory):
    """Collector, controller and two engines; verl's router registers the engines itself."""
    with ExitStack() as exits:
        built = Processes(tmp_path_factory.mktemp("verl"), exits)
        built.collector()
        for name in ENGINES:
            built.engine(name)
        built.controller()
        yield built


@pytest.fixture(scope="session")
def engines(stack):
    """The engines' addresses."""
    return [stack.at(name) for name in ENGINES]
