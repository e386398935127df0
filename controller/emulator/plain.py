"""Are the numbers of a rollout Python's own, whatever library made them?

A numpy number prints and hashes otherwise than the same one of Python's, and the compiled engine
takes Python's alone: what somebody hands in is turned at the door, once. Limit: one level deep.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(given: Any) -> Any:
    """The same number, as Python has it; anything else as it is."""
    return given.item() if isinstance(given, np.generic) else given


class Plain:
    """A dataclass with slots whose numbers are Python's own, in its sequences and mappings too."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name in type(self).__slots__:
            given: Any = getattr(self, name)
            if isinstance(given, np.generic):
                object.__setattr__(self, name, given.item())
            elif isinstance(given, list | tuple | np.ndarray):
                object.__setattr__(self, name, tuple(plain(one) for one in given))
            elif isinstance(given, dict):
                found: Mapping[Any, Any] = given
                object.__setattr__(self, name, {key: plain(one) for key, one in found.items()})
