"""How is one thing a `with`, an `async with` and a decorator of plain and async functions?

Standard library only, Python 3.10: the trainer's library uses it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Scope(Generic[T]):
    """Opens what `make` gives, anew each time: a decorated function runs in one of its own."""

    def __init__(self, make: Callable[[], AbstractContextManager[T]]) -> None:
        self._make = make
        self._open: list[AbstractContextManager[T]] = []

    def __enter__(self) -> T:
        opened = self._make()
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
        make = self._make

        @functools.wraps(function)
        def plain(*args: Any, **kwargs: Any) -> Any:
            with make():
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def waiting(*args: Any, **kwargs: Any) -> Any:
            with make():
                return await function(*args, **kwargs)

        wrapped: Any = waiting if inspect.iscoroutinefunction(function) else plain
        return wrapped
