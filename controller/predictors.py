"""Which predictor serves, which could, and who changed it?

The registry of the data folder decides, the journal notes what serves. Without a data folder only
group history serves.
"""

from __future__ import annotations

from typing import Final

from heddle.controller.beliefs import Beliefs
from heddle.controller.errors import BadRequest
from heddle.controller.journal import Journal
from heddle.controller.wire import PredictorChoice, PredictorState, Rollback
from heddle.models.errors import ModelsError
from heddle.models.history import GroupHistory
from heddle.models.registry import Registry

FACT: Final = "predictor"
HISTORY: Final = GroupHistory.version
"""Always there: needs no artifact."""


class Predictors:
    """Promotes and rolls back; the beliefs read the registry anew afterwards."""

    def __init__(self, registry: Registry | None, journal: Journal, beliefs: Beliefs) -> None:
        self._registry = registry
        self._journal = journal
        self._beliefs = beliefs
        self._now = self._serving()
        journal.set_fact(FACT, self._now[0])

    def state(self) -> PredictorState:
        """What serves now."""
        version, refused = self._now
        known = [v.version for v in self._registry.list()] if self._registry else []
        return PredictorState(version=version, known=[HISTORY, *known], refused=refused)

    def promote(self, asked: PredictorChoice) -> PredictorState:
        """Let a version serve; group history serves once every promotion is taken back."""
        registry = self._registry
        if registry is None and asked.version != HISTORY:
            message = (
                f"no predictor {asked.version!r}: this controller has no data folder, only "
                f"{HISTORY} serves; start it with --data"
            )
            raise BadRequest(message)
        try:
            if registry is not None and asked.version == HISTORY:
                while registry.active() is not None:
                    registry.rollback(who=asked.who, why=asked.why)
            elif registry is not None:
                registry.promote(asked.version, who=asked.who, why=asked.why, force=asked.force)
        except ModelsError as error:
            raise BadRequest(str(error)) from error
        return self._changed()

    def rollback(self, asked: Rollback) -> PredictorState:
        """What served before serves again."""
        try:
            if self._registry is not None:
                self._registry.rollback(who=asked.who, why=asked.why)
        except ModelsError as error:
            raise BadRequest(str(error)) from error
        return self._changed()

    def _changed(self) -> PredictorState:
        self._beliefs.reload()
        self._now = self._serving()
        self._journal.set_fact(FACT, self._now[0])
        return self.state()

    def _serving(self) -> tuple[str, list[str]]:
        if self._registry is None:
            return HISTORY, []
        predictor, refused = self._registry.serving(GroupHistory())
        return predictor.version, refused
