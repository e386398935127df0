"""Which weights must an engine serve before it may take steps, and who brings them there?

`engine`: the command that starts it names them, and every engine must say the same version as the
ones that serve. `disk`: a versioned path, loaded by /update_weights_from_disk. `trainer`: the
trainer's own update group, which a new engine is no member of: layouts stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from heddle.controller.errors import EngineError
from heddle.controller.fleet.engine import Engine

Owner = Literal["engine", "disk", "trainer"]
TRAINER_OWNS: Final = (
    "the trainer owns the weight-update group, and an engine that joins or changes its degree is "
    "no member of it; let the trainer save to a versioned path and say so (heddle fleet weights), "
    "or change the layout from the trainer"
)


@dataclass(slots=True)
class Weights:
    """Who owns them, and where the current ones are."""

    owner: Owner = "engine"
    path: str = ""
    version: str = ""

    @property
    def unavailable(self) -> str:
        """Why layouts cannot change; empty: they can."""
        return TRAINER_OWNS if self.owner == "trainer" else ""

    @property
    def loads(self) -> bool:
        """Whether a new engine gets its weights from the path."""
        return self.owner == "disk" and bool(self.path)

    def declare(self, owner: Owner, path: str, version: str) -> None:
        """What the trainer says from now on."""
        self.owner, self.path = owner, path
        self.version = version or path

    async def bring(self, engine: Engine) -> bool:
        """Load them unless it says that it has them; whether it took a load. EngineError when it
        does not say the version afterwards."""
        if not self.loads or await engine.weight_version() == self.version:
            return False
        await engine.load_weights(self.path, self.version)
        await self.check(engine, self.version)
        return True

    async def check(self, engine: Engine, version: str) -> None:
        """EngineError unless the engine serves exactly that version."""
        said = await engine.weight_version()
        if said != version:
            message = (
                f"the engine at {engine.url} serves weights {said!r}, the fleet {version!r}; give "
                "a versioned path with heddle fleet weights"
            )
            raise EngineError(message)
