"""Does the control plane answer whatever its OpenAPI allows, as its OpenAPI says?

Schemathesis over the real application and stub engines; few examples of each call, all checks.
"""

from __future__ import annotations

import asyncio
import threading

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from heddle.controller.control import control_app

TOKEN = "secret-of-the-test"
CHECKS = (content_type_conformance, response_schema_conformance, status_code_conformance)


@pytest.fixture(scope="module")
def address(serve_stack):
    """The controller's address, served from a thread of its own."""
    ready, done = threading.Event(), threading.Event()
    found = []

    async def live():
        async with serve_stack(engines=1) as s:
            found.append(s.url)
            ready.set()
            while not done.is_set():
                await asyncio.sleep(0.05)

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    assert ready.wait(30)
    yield found[0]
    done.set()
    thread.join()


DESCRIBED = schemathesis.openapi.from_dict(control_app(lambda: None).openapi())
OPERATIONS = {found.ok().label: found.ok() for found in DESCRIBED.get_all_operations()}
# A stream that never ends is no call to fuzz; engines that do not exist take their time-out.
LEFT_OUT = {"GET /heddle/v1/events", "POST /heddle/v1/workers", "POST /workers", "POST /add_worker"}


@pytest.mark.parametrize("label", sorted(set(OPERATIONS) - LEFT_OUT))
def test_every_call_answers_as_described(label, address):
    @given(case=OPERATIONS[label].as_strategy())
    @settings(
        max_examples=5, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def one(case):
        if label.endswith("/acquire") and isinstance(case.body, dict):
            case.body = {**case.body, "deadline_s": 0}
        if label == "POST /heddle/v1/rollouts" and isinstance(case.body, dict):
            # What it may ask is planned sample by sample; that is measured elsewhere.
            case.body = {**case.body, "expected": 8, "groups": []}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        response = case.call(base_url=address, headers=headers, timeout=20)
        assert response.status_code < 500 or response.status_code == 503
        case.validate_response(response, checks=CHECKS)

    one()


def test_the_description_names_every_route_and_no_422(address):
    import httpx

    described = httpx.get(f"{address}/openapi.json", timeout=20).json()
    calls = {(m.upper(), path) for path, ways in described["paths"].items() for m in ways}
    assert {
        ("POST", "/heddle/v1/acquire"), ("POST", "/heddle/v1/release"),
        ("POST", "/heddle/v1/switches"), ("GET", "/heddle/v1/events"), ("POST", "/workers"),
        ("GET", "/get_loads"), ("POST", "/flush_cache"), ("GET", "/heddle/v1/plan"),
    } <= calls  # fmt: skip
    assert "422" not in str(described["paths"])
    assert all(ways[m].get("description") for ways in described["paths"].values() for m in ways)
