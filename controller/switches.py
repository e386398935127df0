"""Which policies are in force for a run, and who changed them when?

In force from the next decision on. The run "" holds what every run without its own switches gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from heddle.controller.core.policies import changed, preset_switches
from heddle.controller.core.types import CoreError, Switches
from heddle.controller.journal import Change, Journal

EVERY_RUN = ""


class Switchboard:
    """Reads and writes the journal; a broken entry there falls back to the preset at start."""

    def __init__(self, journal: Journal, preset: str) -> None:
        self._journal = journal
        self._of: dict[str, Switches] = {EVERY_RUN: preset_switches(preset)}
        for run, known in sorted(journal.switches().items()):
            try:
                self._of[run] = changed(self.of(run), known)
            except CoreError:
                # Written by another version that knew other policies: the start preset serves.
                continue

    @property
    def runs(self) -> list[str]:
        """Runs with switches of their own."""
        return [run for run in self._of if run != EVERY_RUN]

    def of(self, run: str | None) -> Switches:
        """The switches in force for that run."""
        return self._of.get(run or EVERY_RUN, self._of[EVERY_RUN])

    def set(
        self,
        run: str | None,
        changes: Mapping[str, str],
        *,
        preset: str | None = None,
        who: str,
        why: str,
        at_ns: int,
    ) -> list[Change]:
        """All or nothing: an unknown name raises and changes nothing. Equal is no change."""
        run = run or EVERY_RUN
        before = self.of(run)
        wanted = preset_switches(preset) if preset is not None else before
        after = changed(wanted, changes)
        differing = [
            Change(run=run, at_ns=at_ns, choice=choice, before=old, after=new, who=who, why=why)
            for (choice, old), new in zip(
                asdict(before).items(), asdict(after).values(), strict=True
            )
            if old != new
        ]
        if not differing:
            return []
        written = self._journal.switch(run, asdict(after), differing)
        self._of[run] = after
        return written

    def audit(self, limit: int = 200) -> list[Change]:
        """The newest changes first."""
        return self._journal.audit(limit)
