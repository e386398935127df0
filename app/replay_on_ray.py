"""How are the cells of a comparison spread over a Ray cluster?

One task a cell and policy; every node needs Heddle installed as here. A task that fails with its
node is tried again elsewhere by Ray itself: the replay is the same wherever it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from heddle.app.errors import fail
from heddle.app.replay import Cell, play
from heddle.controller.fleet.ray_node import unreachable


def spread(jobs: Sequence[tuple[Cell, str]], address: str) -> Iterator[dict[str, Any]]:
    """Rows in the order of the jobs; `local` is a cluster of this machine that ends with them."""
    import ray  # seconds of imports, and an extra

    if why := unreachable(address):
        fail(f"no Ray cluster answers at {address}: {why}")
    try:
        ray.init(
            address, log_to_driver=False, include_dashboard=False, logging_level=logging.WARNING
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        fail(f"no Ray cluster answers at {address}: {str(error).splitlines()[0]}")
    try:
        task: Any = ray.remote(_detailed)
        for pending in [task.remote(cell, policy) for cell, policy in jobs]:
            yield ray.get(pending)
    finally:
        ray.shutdown()


def _detailed(cell: Cell, policy: str) -> dict[str, Any]:
    return play(cell, policy, detail=True)
