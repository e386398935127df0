"""Which predictor serves, which could, and who changed it?

The registry of the data folder decides, the journal notes what serves. Without a data folder only
group history serves.
"""

from __future__ import annotations

from typing import Any, Final

from heddle.controller.beliefs import Beliefs
from heddle.controller.errors import BadRequest, ControllerError, NotFound
from heddle.controller.journal import Journal
from heddle.controller.wire_predictor import (
    GateRow,
    PredictorCard,
    PredictorChoice,
    PredictorDeed,
    PredictorState,
    PredictorVersion,
    Rollback,
)
from heddle.models.errors import ModelsError
from heddle.models.history import GroupHistory
from heddle.models.registry import Registry, Version

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
        """What serves now; read anew, for an artifact may break while it serves."""
        version, refused = self._now = self._serving()
        kept = self._registry.list() if self._registry else []
        return PredictorState(
            version=version,
            known=[HISTORY, *(v.version for v in kept)],
            refused=refused,
            versions=[PredictorVersion(**_short(v)) for v in kept],
        )

    def card(self, version: str) -> PredictorCard:
        """All that is kept of one version."""
        registry = self._registry
        try:
            if registry is None or version == HISTORY:
                message = f"{version} has no card: group history needs no artifact"
                raise NotFound(message)
            kept = registry.get(version)
            return PredictorCard(
                **_short(kept),
                serving=version == self._now[0],
                card=registry.card(version),
                table=[GateRow(**row) for row in registry.table(version)],
                trained=dict(kept.trained),
            )
        except (ModelsError, OSError) as error:
            raise NotFound(str(error)) from error

    def audit(self, limit: int) -> list[PredictorDeed]:
        """What was saved, promoted and taken back, the newest first."""
        try:
            deeds = self._registry.audit() if self._registry else []
        except OSError as error:
            raise NotFound(str(error)) from error
        return [PredictorDeed(**deed) for deed in reversed(deeds[-limit:])]

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
        except OSError as error:
            raise _unwritten(error) from error
        return self._changed()

    def rollback(self, asked: Rollback) -> PredictorState:
        """What served before serves again."""
        try:
            if self._registry is not None:
                self._registry.rollback(who=asked.who, why=asked.why)
        except ModelsError as error:
            raise BadRequest(str(error)) from error
        except OSError as error:
            raise _unwritten(error) from error
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


def _unwritten(error: OSError) -> ControllerError:
    message = f"the registry of predictors cannot be written ({error}); what served goes on"
    return ControllerError(message)


def _short(version: Version) -> dict[str, Any]:
    return {
        "version": version.version,
        "accepted": version.accepted,
        "because": version.because,
        "created_ns": version.created_ns,
        "fingerprint": version.fingerprint,
        "metrics": dict(version.metrics),
    }
