"""Attributes of the driver's own, as properties of a handle or of a cursor.

A class that has all of them needs no `__getattr__`, which would make each use of its own attributes, and each call of
its methods, slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


class Forwarded:
    """An attribute that `driver_attribute` of a handle or cursor finds."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, it: Any, owner: type) -> Any:
        return self if it is None else it.driver_attribute(self._name)


def forwards(names: Iterable[str]) -> Callable[[type[T]], type[T]]:
    """A decorator: the class has these attributes of the driver's, as far as it defines none of its own."""

    def decorate(cls: type[T]) -> type[T]:
        for name in names:
            if not name.startswith("__") and not hasattr(cls, name):
                setattr(cls, name, Forwarded(name))
        return cls

    return decorate
