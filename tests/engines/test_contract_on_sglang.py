"""Is the contract of an engine true of a genuine SGLang?

The claims are in contract_*.py; tests/controller asks the same of the emulated engine.
"""

from __future__ import annotations

import pytest
from contract_fleets import *  # noqa: F403
from contract_requests import *  # noqa: F403
from contract_spans import *  # noqa: F403
from contract_steering import *  # noqa: F403

# The first test of an engine waits for it to start.
pytestmark = pytest.mark.timeout(420)


@pytest.fixture
def shares() -> bool:
    return True
