"""What runs beside one engine on its node, when Ray places it there?

An actor that starts the engine as a process of its own, says when it serves and when it ended, and
takes it along when it dies itself. The node needs this package, and nothing else of the controller.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from heddle.controller.fleet.process import EngineProcess, answers, free_port

LOOK_S: Final = 0.1


class EngineActor:
    """One engine; `words` are its command with {host} and {port} still to be filled in."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], log: str) -> None:
        self._words = list(words)
        self._environment = dict(environment)
        self._log = Path(log)
        self._process: EngineProcess | None = None

    async def begin(self, host: str, within_s: float) -> tuple[str, str]:
        """(its address, "") once it serves; ("", what is wrong) when it does not."""
        port = free_port(host)
        words = [w.replace("{host}", host).replace("{port}", str(port)) for w in self._words]
        self._log.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Not in a thread: the engine would end with it.
            self._process = EngineProcess(words, self._log, self._environment)
        except OSError as error:
            return "", f"cannot be started as {words[0]!r}: {error}"
        deadline = time.monotonic() + within_s
        while not await answers(f"http://{host}:{port}"):
            if self._process.exit_code is not None:
                code = self._process.exit_code
                return "", f"exited with {code}; it last said: {self._process.tail()}"
            if time.monotonic() > deadline:
                said = self._process.tail()
                await self.stop()
                return "", f"was not healthy within {within_s:g} s; it last said: {said}"
            await asyncio.sleep(LOOK_S)
        return f"http://{host}:{port}", ""

    def host(self) -> str:
        """The address of its node, as Ray knows it."""
        import ray

        return str(ray.util.get_node_ip_address())

    async def ended(self) -> str:
        """Returns when the engine ends: what it last said."""
        while self._process is not None and self._process.exit_code is None:
            await asyncio.sleep(LOOK_S)
        return self.tail()

    def tail(self) -> str:
        """The end of its log."""
        return self._process.tail() if self._process else ""

    async def stop(self) -> None:
        """End the engine."""
        if self._process is not None:
            await self._process.stop()
