"""What does verl's client call instead of the server actor, so that a step carries its decision?

The client only ever writes `await server.generate.remote(...)`. A `StepHandle` does that with the
request id that Heddle chose, and tells the router how it went. Pickled from router to agent loop.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

SPEAKS: Final = "heddle_step"
"""The method that a server actor has when `verl_plugin.priority` made it."""
LOST: Final[dict[str, str]] = dict.fromkeys(
    ("ActorDiedError", "ActorUnavailableError", "RayActorError"), "engine_lost"
)
"""Errors after which the controller looks whether the engine still lives."""
ABORTED: Final = frozenset({"abort", "aborted"})


@dataclass(slots=True)
class StepHandle:
    """One granted step on one server actor."""

    server: Any
    router: Any
    rid: str
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """Priority and traceparent, for a server that takes them."""

    @property
    def generate(self) -> StepHandle:
        """As on an actor handle."""
        return self

    def remote(self, **asked: Any) -> Any:
        """As on an actor's method: something to await."""
        return self._step(asked)

    async def _step(self, asked: dict[str, Any]) -> Any:
        asked["request_id"] = self.rid
        tokens = len(asked.get("prompt_ids") or ())
        if hasattr(self.server, SPEAKS):
            method, asked["heddle"] = getattr(self.server, SPEAKS), self.extra
        else:
            method = self.server.generate
        try:
            output = await method.remote(**asked)
        except BaseException as error:
            name = type(error).__name__
            self.router.settle.remote(self.rid, {"error": LOST.get(name, name)})
            raise
        self.router.settle.remote(self.rid, said_of(output, tokens))
        return output


def said_of(output: Any, input_tokens: int) -> dict[str, Any]:
    """What a release says of verl's TokenOutput; an abort is the trainer's, never ours."""
    extra: Any = getattr(output, "extra_fields", None) or {}
    said: dict[str, Any] = {
        "input_tokens": input_tokens,
        "output_ids": list(output.token_ids),
        "output_tokens": len(output.token_ids),
        "at_s": time.time(),
    }
    meta: Any = extra.pop("heddle", None)
    version = extra.get("global_steps")
    if isinstance(meta, Mapping):
        said["meta_info"] = dict(meta)
    if version is not None:
        # The trainer's own number: SGLang's weight_version stays what it was under verl.
        said["policy_version"] = str(version)
    if output.stop_reason in ABORTED:
        said["error"] = "aborted_by_trainer"
    return said
