"""Which engines are there when somebody else started them?

Addresses given at start or registered later; nothing is launched and no degree can change.
"""

from __future__ import annotations

from heddle.controller.core.types import Layout
from heddle.controller.fleet.launcher import Started


class StaticLauncher:
    """Takes engines as they are."""

    can_reallocate = False

    async def place(self, layout: Layout) -> list[Started]:
        """Nothing to start: the registered workers serve whatever the layout says."""
        _ = layout
        return []

    async def stop(self) -> None:
        """Nothing was started here."""
