"""The driver's attributes on a handle or cursor: they are read through it, and set while that handle is used.

Handles that share a physical connection do not see each other's. Each one's are set before it uses the connection, and
what was there before is restored when another handle uses it, or when it is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from txpool.resources.driver.raw import RawConnection


T = TypeVar("T")

NO_ATTRIBUTES: Mapping[str, Any] = MappingProxyType({})


class SessionOverrides:
    """The attributes that are overridden on one raw connection, and their values before. Not thread-safe."""

    __slots__ = ("_before", "_raw", "applied", "at_the_end")

    def __init__(self, raw: RawConnection) -> None:
        self._raw = raw
        self._before: dict[str, Any] = {}
        #: The attributes that are set now, as `apply` was given them; None if that was not done to its end.
        self.applied: Mapping[str, Any] | None = NO_ATTRIBUTES
        #: Values to set when the connection is given back, whatever the handles have overridden.
        self.at_the_end: dict[str, Any] = {}

    def apply(self, attributes: Mapping[str, Any]) -> None:
        """Set these attributes, and restore those that another handle has overridden."""
        if attributes is self.applied:
            return
        self.applied = None
        for name in self._before.keys() - attributes.keys():
            setattr(self._raw, name, self._before[name])
        for name, value in attributes.items():
            self._before.setdefault(name, getattr(self._raw, name))
            setattr(self._raw, name, value)
        self.applied = attributes

    def restore(self) -> None:
        """Restore all attributes, and set `at_the_end`."""
        self.apply(NO_ATTRIBUTES)
        for name, value in self.at_the_end.items():
            setattr(self._raw, name, value)


class HandleState:
    """What was set on a handle. Made when something is set, or it joins a transaction: most handles never need one."""

    __slots__ = ("attributes", "closed_raw", "in_two_phase", "joined", "joins_commits", "modes", "overrides")

    def __init__(self) -> None:
        self.attributes = NO_ATTRIBUTES
        #: The attributes that say how its local transactions begin.
        self.modes = NO_ATTRIBUTES
        #: What is overridden on the physical connection of a plain handle.
        self.overrides: SessionOverrides | None = None
        #: It was taken outside a transaction, and joined one.
        self.joined = False
        #: Its commit() and rollback() end its own work within a transaction, whatever its datasource's others do.
        self.joins_commits = False
        #: Between the driver's tpc_begin() and its end, if the handle asks no driver for that.
        self.in_two_phase = False
        #: A closed connection of the driver's, in place of a handle that is closed.
        self.closed_raw: RawConnection = None

    def restore(self) -> None:
        """Before the physical connection of a plain handle is given back: restore its attributes."""
        if self.overrides is not None:
            self.overrides.restore()
            self.overrides = None


class Attribute:
    """An attribute of the driver's connection, as a property of the handle."""

    def __init__(self) -> None:
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, handle: Any, owner: type) -> Any:
        return self if handle is None else handle.get_attribute(self._name)

    def __set__(self, handle: Any, value: Any) -> None:
        handle.set_attribute(self._name, value)


class CursorAttribute(Attribute):
    """An attribute of the driver's cursor, as a property of ours."""

    def __get__(self, cursor: Any, owner: type) -> Any:
        return self if cursor is None else getattr(cursor.raw, self._name)

    def __set__(self, cursor: Any, value: Any) -> None:
        setattr(cursor.raw, self._name, value)


class Forwarded:
    """An attribute that `driver_attribute` of a handle or cursor finds."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, it: Any, owner: type) -> Any:
        return self if it is None else it.driver_attribute(self._name)


def forwards(names: Iterable[str]) -> Callable[[type[T]], type[T]]:
    """A decorator: the class has these attributes of the driver's, as far as it defines none of its own.

    A class that has all of them needs no `__getattr__`, which would make each use of its own attributes, and each call
    of its methods, slower.
    """

    def decorate(cls: type[T]) -> type[T]:
        for name in names:
            if not name.startswith("__") and not hasattr(cls, name):
                setattr(cls, name, Forwarded(name))
        return cls

    return decorate
