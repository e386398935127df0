"""How does a priority reach the SGLang that verl starts, whose `generate` has no such argument?

`VERL_USE_EXTERNAL_MODULES=heddle.controller.verl_plugin.priority` registers a replica whose server
actor has one method more: verl's own `generate` with priority and traceparent put on the request
and SGLang's meta_info handed back. Nothing of verl's is copied or changed. Engines must run with
`+actor_rollout_ref.rollout.engine_kwargs.sglang.enable_priority_scheduling=True`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

_ASKED: Final[ContextVar[dict[str, Any] | None]] = ContextVar("heddle_step", default=None)


class Carried:
    """A tokenizer manager that puts on a request what the step under way asked for."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    async def generate_request(self, request: Any, http: Any = None) -> AsyncIterator[Any]:
        """SGLang's own, with the step's priority; its last meta_info is kept for the step."""
        asked = _ASKED.get()
        if asked is not None:
            put_on(request, asked)
        async for output in self._manager.generate_request(request, http):
            if asked is not None:
                asked["meta_info"] = dict(output.get("meta_info") or {})
            yield output


def put_on(request: Any, asked: Mapping[str, Any]) -> None:
    """Priority and trace context onto SGLang's GenerateReqInput."""
    if asked.get("priority") is not None:
        request.priority = int(asked["priority"])
    if asked.get("traceparent"):
        request.external_trace_header = {"traceparent": str(asked["traceparent"])}


def with_steps(server_class: type) -> type:
    """verl's server actor class with `heddle_step`."""

    class HeddleServer(server_class):  # pyright: ignore[reportUntypedBaseClass]
        """Takes steps that carry a decision; plain `generate` stays what it is."""

        async def heddle_step(self, *, heddle: Mapping[str, Any], **asked: Any) -> Any:
            """One step; SGLang's own figures come back in `extra_fields`."""
            if not isinstance(self.tokenizer_manager, Carried):
                self.tokenizer_manager: Any = Carried(self.tokenizer_manager)
            said = dict(heddle)
            token = _ASKED.set(said)
            try:
                output = await self.generate(**asked)
            finally:
                _ASKED.reset(token)
            output.extra_fields["heddle"] = plain(said.get("meta_info") or {})
            return output

    return HeddleServer


def plain(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Of meta_info what is a number, a text or a finish reason; token lists stay behind."""
    kept = (str, int, float, bool)
    return {k: v for k, v in meta.items() if isinstance(v, kept) or k == "finish_reason"}


def register() -> None:
    """Let `rollout.name=sglang` mean the replica with steps."""
    from verl.workers.rollout.replica import (  # pyright: ignore[reportMissingImports]
        RolloutReplicaRegistry,
    )

    stock: Callable[[], type] = RolloutReplicaRegistry._registry["sglang"]
    RolloutReplicaRegistry.register("sglang", lambda: replica_with_steps(stock()))


def replica_with_steps(stock: type) -> type:
    """verl's replica, starting servers with steps."""
    import ray

    class HeddleReplica(stock):  # pyright: ignore[reportUntypedBaseClass]
        """verl's SGLangReplica in all else."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            # What verl put there is an actor class around its own server class.
            actor_class: Any = self.server_class
            plain_class = actor_class.__ray_metadata__.modified_class
            self.server_class = ray.remote(with_steps(plain_class))

    return HeddleReplica


def _register_inside_verl() -> None:
    import importlib.util
    import sys

    if "verl" in sys.modules and importlib.util.find_spec("verl") is not None:
        register()


_register_inside_verl()
