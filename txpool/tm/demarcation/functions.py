"""Which functions `@transactional` can decorate, and what is known of them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from txpool.errors import ProgrammingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from txpool.tm.completion.dropped import Origin

_NOT_PLAIN = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
#: What a decorated function has become. A class's decorator leaves it as it is.
decorated: WeakSet[Callable[..., Any]] = WeakSet()


def require_function(function: Any) -> str:
    """The function's name. ProgrammingError if it cannot be decorated."""
    name = str(getattr(function, "__qualname__", function))
    if isinstance(function, classmethod | staticmethod | property):
        kind = type(function).__name__
        raise ProgrammingError(
            f"{getattr(function, '__qualname__', 'it')} is a {kind} before it is transactional: write @{kind} above "
            "@transactional, which decorates the function itself"
        )
    if not callable(function):
        raise ProgrammingError(f"{name} is no function: transactional decorates functions and methods")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ProgrammingError(
            f"{name}() is a generator: its body runs when it is iterated, and a call would commit before that. "
            "Decorate what iterates it"
        )
    return name


def require_plain(function: Any, whose: str) -> None:
    """ProgrammingError if a call of it only makes a coroutine or a generator, whose body nobody would run."""
    called = function, getattr(type(function), "__call__", None)  # noqa: B004 - what the call is
    if any(check(each) for check in _NOT_PLAIN for each in called):
        raise ProgrammingError(
            f"{whose} {getattr(function, '__qualname__', function)}() is a coroutine function or a generator: a call "
            "of it would do nothing, and count as done. Give a plain function, which may call asyncio.run(). Nothing "
            "was done"
        )


def decorate_methods(owner: type, decorate: Callable[[Any], Any]) -> None:
    """Decorate the public methods that a class defines itself.

    ProgrammingError, and nothing is done, if one of them cannot be decorated, or if there is none.
    """
    found: dict[str, Any] = {}
    for name, value in vars(owner).items():
        is_wrapped = isinstance(value, classmethod | staticmethod)
        method = value.__func__ if is_wrapped else value
        if name.startswith("_") or not inspect.isfunction(method) or _is_decorated(method):
            continue
        found[name] = type(value)(decorate(method)) if is_wrapped else decorate(method)
    if not found:
        raise ProgrammingError(
            f"{owner.__qualname__} is a class that defines no public method itself: there is nothing to make "
            "transactional. Decorate the class that defines them"
        )
    for name, value in found.items():
        setattr(owner, name, value)


def _is_decorated(function: Callable[..., Any]) -> bool:
    """Whether it is transactional already, or another decorator's around one that is."""
    return inspect.unwrap(function, stop=decorated.__contains__) in decorated


def is_coroutine_function(function: Any) -> bool:
    """Whether it is a coroutine function, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def origin_of(function: Any) -> Origin | None:
    """The place of the function's code."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else (code, 0)
