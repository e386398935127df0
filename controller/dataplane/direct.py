"""How do acquire and release answer in well under a millisecond?

Raw ASGI: the prompt's ids stay the bytes that came, as on the data plane (8,000 of them as a list
cost 2 ms), the rest is parsed by the wire's own model. The control plane has the same two routes,
so that they are in its OpenAPI.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ValidationError

from heddle.controller import wire
from heddle.controller.dataplane import asgi
from heddle.controller.dataplane.acquire import Acquired
from heddle.controller.dataplane.asgi import Receive, Scope, Send
from heddle.controller.dataplane.splice import split
from heddle.controller.errors import BadRequest, ControllerError

ACQUIRE: Final = "/heddle/v1/acquire"
RELEASE: Final = "/heddle/v1/release"
MAX_BYTES: Final = 8 << 20


class Direct:
    """The two calls as an ASGI application."""

    def __init__(self, acquired: Acquired) -> None:
        self._acquired = acquired

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call; every failure is a sentence."""
        try:
            raw = await asgi.read_body(receive, MAX_BYTES)
            said = await self._answer(scope["path"], raw)
        except asgi.ClientLeft:
            return
        except ControllerError as error:
            await asgi.fail(send, error.status, str(error))
            return
        await asgi.answer(send, 200, said.model_dump_json().encode(), "application/json")

    async def _answer(self, path: str, raw: bytes) -> BaseModel:
        body = split(raw)
        try:
            if path == ACQUIRE:
                return await self._acquired.acquire(wire.Acquire.model_validate(body.head), body)
            return await self._acquired.release(wire.Release.model_validate(body.head), body)
        except ValidationError as error:
            raise BadRequest(sentence_of(error)) from error


def sentence_of(error: ValidationError) -> str:
    """What is wrong with which field."""
    found = [f"{'.'.join(map(str, e['loc'])) or 'the body'}: {e['msg']}" for e in error.errors()]
    return "; ".join(found)
