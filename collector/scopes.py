"""How is one thing a `with`, an `async with` and a decorator of plain and async functions?

Standard library only, Python 3.10: the trainer's library uses it.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

_log: Final = logging.getLogger("heddle")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Scope(Generic[T]):
    """Opens what `make` gives, anew each time: a decorated function runs in one of its own.

    Where that cannot be (an index that is no number), what `instead` gives: a host goes on.
    """

    def __init__(
        self,
        make: Callable[[], AbstractContextManager[T]],
        instead: Callable[[], AbstractContextManager[T]] | None = None,
    ) -> None:
        self._make = make
        self._instead = instead
        self._open: list[AbstractContextManager[T]] = []

    def __enter__(self) -> T:
        try:
            opened = self._make()
            value = opened.__enter__()
        except Exception as mistake:  # a host must not fail for its telemetry
            if self._instead is None:
                raise
            _told(f"{type(mistake).__name__}: {mistake}")
            opened = self._instead()
            value = opened.__enter__()
        self._open.append(opened)
        return value

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.pop().__exit__(kind, error, trace)

    async def __aenter__(self) -> T:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        """Every call of the function in a scope of its own."""
        make, instead = self._make, self._instead

        @functools.wraps(function)
        def plain(*args: Any, **kwargs: Any) -> Any:
            with Scope(make, instead):
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def waiting(*args: Any, **kwargs: Any) -> Any:
            with Scope(make, instead):
                return await function(*args, **kwargs)

        wrapped: Any = waiting if inspect.iscoroutinefunction(function) else plain
        return wrapped


@functools.lru_cache(maxsize=256)
def _told(mistake: str) -> None:
    """Once for each mistake: a loop makes it again and again."""
    _log.warning(
        "Heddle was told what it cannot tell on (%s): the program goes on without", mistake
    )
