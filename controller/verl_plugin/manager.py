"""How does verl say when a rollout begins and ends, instead of the router guessing it?

`actor_rollout_ref.rollout.agent.agent_loop_manager_class` names this class: verl's own manager, and
around each batch one call to the router. Imported inside verl alone.
"""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.agent_loop import (  # pyright: ignore[reportMissingImports]
    AgentLoopManager,
)


class HeddleAgentLoopManager(AgentLoopManager):  # pyright: ignore[reportUntypedBaseClass]
    """Announces each batch: how many, for which trainer step, train or validate."""

    async def generate_sequences(self, prompts: Any) -> Any:
        """verl's own, between begin and end of the rollout."""
        router: Any = self.llm_client._load_balancer
        meta: Any = prompts.meta_info
        kind = "validate" if meta.get("validate") else "train"
        step = meta.get("global_steps")
        await router.begin_rollout.remote(expected=len(prompts), kind=kind, step=step)
        try:
            return await super().generate_sequences(prompts)
        finally:
            await router.end_rollout.remote()
