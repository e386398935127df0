"""How does another engine go on where one stopped?

Prompt and received tokens become the new prompt, the limit shrinks by what was received, and what
comes then is told as if it were one answer. For /generate with token ids alone: text and chat would
be tokenised anew, and the continuation would be of something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

DEFAULT_NEW_TOKENS: Final = 128
"""SGLang's limit for a request that names none."""


@dataclass(slots=True)
class Received:
    """Output so far, over all engines that were lost."""

    ids: list[int] = field(default_factory=list[int])
    text: str = ""
    engines: int = 0

    def take(self, answer: Any) -> bool:
        """Remember what an answer or the last event of a stream holds; False when it cannot be."""
        if not isinstance(answer, Mapping):
            return False
        ids, meta = answer.get("output_ids"), answer.get("meta_info")
        counted = meta.get("completion_tokens") if isinstance(meta, Mapping) else None
        # An engine that streams only what is new would leave a hole here.
        if not isinstance(ids, list) or counted != len(ids):
            return False
        self.ids, self.text = list(ids), str(answer.get("text") or "")
        self.engines += 1
        return True

    def after(self, prompt: bytes) -> bytes:
        """The inside of the JSON array of the ids that the next engine gets."""
        more = orjson.dumps(self.ids)[1:-1]
        return prompt + b"," + more if prompt.strip() and more else prompt or more

    def left(self, sampling: Any) -> dict[str, Any]:
        """The sampling parameters with what is left of the limits."""
        known = dict(sampling) if isinstance(sampling, Mapping) else {}
        known.setdefault("max_new_tokens", DEFAULT_NEW_TOKENS)
        for name in ("max_new_tokens", "min_new_tokens"):
            limit = known.get(name)
            if isinstance(limit, int):
                known[name] = max(limit - len(self.ids), 0)
        return known

    def put_before(self, answer: dict[str, Any]) -> None:
        """Make an answer of the engine that went on one of the whole."""
        meta = answer.get("meta_info")
        if not isinstance(meta, dict) or "output_ids" not in answer:
            return
        answer["output_ids"] = [*self.ids, *answer["output_ids"]]
        answer["text"] = self.text + str(answer.get("text") or "")
        meta["prompt_tokens"] = max(int(meta.get("prompt_tokens") or 0) - len(self.ids), 0)
        meta["completion_tokens"] = int(meta.get("completion_tokens") or 0) + len(self.ids)

    def rewrite(self, event: bytes) -> bytes:
        """An event of the stream that went on, as one of the whole."""
        if not event.startswith(b"data:") or event.endswith(b"[DONE]"):
            return event
        try:
            said = orjson.loads(event[5:])
        except orjson.JSONDecodeError:
            return event
        if isinstance(said, dict):
            self.put_before(said)
        return b"data: " + orjson.dumps(said)
