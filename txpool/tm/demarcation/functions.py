"""Which functions `@transactional` can decorate, and what is known of them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from txpool.errors import ProgrammingError

if TYPE_CHECKING:
    from txpool.tm.completion.dropped import Origin


def require_function(function: Any) -> str:
    """The function's name. ProgrammingError if it cannot be decorated."""
    name = str(getattr(function, "__qualname__", function))
    if isinstance(function, classmethod | staticmethod | property):
        kind = type(function).__name__
        raise ProgrammingError(
            f"{getattr(function, '__qualname__', 'it')} is a {kind} before it is transactional: write @{kind} above "
            "@transactional, which decorates the function itself"
        )
    if isinstance(function, type):
        raise ProgrammingError(f"{name} is a class: decorate those of its methods that are to be transactions")
    if not callable(function):
        raise ProgrammingError(f"{name} is no function: transactional decorates functions and methods")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ProgrammingError(
            f"{name}() is a generator: its body runs when it is iterated, and a call would commit before that. "
            "Decorate what iterates it"
        )
    return name


def is_coroutine_function(function: Any) -> bool:
    """Whether it is a coroutine function, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def origin_of(function: Any) -> Origin | None:
    """The place of the function's code."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else (code, 0)
