"""What does verl's SGLang server actor look like from its client, with an emulated engine behind?

The same `generate` as `SGLangHttpServer` of verl 0.9.1, and Heddle's `heddle_step` where asked for.
Time and limits are the engine's; the tokens are written here, so that an agent loop finds a tool
call in them. It imports nothing of verl: an import costs 15 s in each actor's process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import aiohttp

END_OF_CALL = 4
"""The id of `</tool_call>` in the tokenizer of tests/engines/make_model.py."""
RESPONSE = 400
"""Tokens of an answer without a limit, as rollout.response_length limits it at verl's server."""


@dataclass
class Output:
    """The fields of verl's TokenOutput (the driver compares)."""

    token_ids: list[int]
    log_probs: list[float] | None = None
    routed_experts: Any = None
    stop_reason: str | None = None
    num_preempted: int | None = None
    extra_fields: dict[str, Any] = field(default_factory=dict)


class Server:
    """One server actor; `calls` is what it answers before its last word, turn by turn."""

    def __init__(self, url: str, calls: list[list[int]], last: list[int]) -> None:
        self.url, self._calls, self._last = url, calls, last
        self.global_steps = 1
        self.seen: list[dict[str, Any]] = []

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: Any = None,
        video_data: Any = None,
    ) -> Output:
        """As SGLangHttpServer.generate."""
        return await self._step(prompt_ids, sampling_params, request_id, {})

    async def abort_all_requests(self) -> None:
        """As a trainer does before it syncs weights."""
        await self._post("/abort_request", {"abort_all": True})

    async def set_global_steps(self, global_steps: int) -> None:
        """As it does after it."""
        self.global_steps = global_steps

    async def what_was_seen(self) -> list[dict[str, Any]]:
        """Every step's request id, prompt length and extra fields."""
        return self.seen

    async def _step(
        self, prompt_ids: list[int], sampling: dict[str, Any], rid: str, extra: dict[str, Any]
    ) -> Output:
        self.seen.append({"rid": rid, "prompt": len(prompt_ids), **extra})
        words = [*self._calls, self._last][prompt_ids.count(END_OF_CALL)]
        limit = sampling.get("max_tokens") or sampling.get("max_new_tokens") or RESPONSE
        body = {
            "input_ids": prompt_ids,
            "rid": rid,
            "sampling_params": {"max_new_tokens": min(limit, len(words)), "ignore_eos": True},
        }
        if extra.get("priority") is not None:
            body["priority"] = extra["priority"]
        said = await self._post("/generate", body)
        meta = said["meta_info"]
        count = meta["completion_tokens"]
        aborted = meta["finish_reason"]["type"] == "abort"
        return Output(
            token_ids=words[:count],
            stop_reason="abort" if aborted else "stop",
            extra_fields={"global_steps": self.global_steps, **({"heddle": meta} if extra else {})},
        )

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.url + path, json=body) as reply,
        ):
            return await reply.json(content_type=None)


class SteppingServer(Server):
    """With the method that `heddle.controller.verl_plugin.priority` adds."""

    async def heddle_step(self, *, heddle: dict[str, Any], **asked: Any) -> Output:
        """A step that carries its decision."""
        return await self._step(
            asked["prompt_ids"], asked["sampling_params"], asked["request_id"], dict(heddle)
        )
