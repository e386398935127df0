"""How does verl's router ask the controller, without ever stopping a training run for it?

aiohttp, which every verl has (through `ray[default]`). A controller that does not answer is asked
again only after AWAY_S; until then every call fails at once, and the router decides alone.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Final

import aiohttp

AWAY_S: Final = 5.0
CONNECT_S: Final = 2.0
SLACK_S: Final = 30.0
"""Beyond a call's own deadline before it counts as lost."""


class Unreachable(Exception):
    """Nobody answers at the controller's address, or it said that it cannot."""


class Refused(Exception):
    """The controller's own sentence."""


class Calls:
    """The routes of /heddle/v1 that the router needs; made and used on one event loop."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._session: aiohttp.ClientSession | None = None
        self._away_until_s = 0.0

    async def post(
        self, path: str, said: dict[str, Any], *, slack_s: float = SLACK_S, needs: str = ""
    ) -> dict[str, Any]:
        """The answer, which says what the caller `needs`; Unreachable or Refused."""
        answer = await self._call("POST", path, said, slack_s)
        if needs and needs not in answer:
            message = f"{self.url} answered {path} without {needs!r}: no controller of Heddle's"
            raise Refused(message)
        return answer

    async def delete(self, path: str) -> dict[str, Any]:
        """The answer; Unreachable or Refused."""
        return await self._call("DELETE", path, {}, SLACK_S)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _call(
        self, method: str, path: str, said: dict[str, Any], slack_s: float
    ) -> dict[str, Any]:
        if time.monotonic() < self._away_until_s:
            message = f"the controller at {self.url} did not answer; asking again in a few seconds"
            raise Unreachable(message)
        body = json.dumps(said, separators=(",", ":")).encode()
        timeout = aiohttp.ClientTimeout(total=slack_s, sock_connect=CONNECT_S)
        try:
            async with self._opened().request(
                method, f"{self.url}/heddle/v1{path}", data=body, headers=self._headers,
                timeout=timeout,
            ) as reply:  # fmt: skip
                status, answer = reply.status, json.loads(await reply.read())
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
            self._away_until_s = time.monotonic() + AWAY_S
            message = f"the controller at {self.url} did not answer {path} ({error!r})"
            raise Unreachable(message) from error
        if not isinstance(answer, dict):
            message = (
                f"{self.url} answered {path} with {str(answer)[:80]!r}: no controller's answer"
            )
            raise Refused(message)
        if status >= 500:
            raise Unreachable(str(answer.get("error", status)))
        if status >= 400:
            raise Refused(str(answer.get("error", status)))
        return answer

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            # No limit: every held step waits in a call of its own.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self._session
