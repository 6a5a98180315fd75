"""Attributes of the driver's connection, as a handle sets them: its own while it works, and taken back afterwards.

Handles that share a physical connection do not see each other's: whoever works on it wears its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

NOTHING: Mapping[str, Any] = MappingProxyType({})


class SessionOverrides:
    """What is worn on one raw connection, and what was there before. Used under the connection's own order."""

    __slots__ = ("_applied", "_before", "_raw", "at_the_end")

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._before: dict[str, Any] = {}
        self._applied = NOTHING
        #: Values to be set once it is given back, whoever wore what.
        self.at_the_end: dict[str, Any] = {}

    def apply(self, attributes: Mapping[str, Any]) -> None:
        """Take off what another handle wore, and put this on."""
        if attributes is self._applied:
            return
        for name in self._applied.keys() - attributes.keys():
            setattr(self._raw, name, self._before[name])
        for name, value in attributes.items():
            self._before.setdefault(name, getattr(self._raw, name))
            setattr(self._raw, name, value)
        self._applied = attributes

    def restore(self) -> None:
        """Leave the raw connection as it was found."""
        self.apply(NOTHING)
        for name, value in self.at_the_end.items():
            setattr(self._raw, name, value)


class HandleState:
    """What a handle has beyond its connection, once it has anything: most never do, and are cheaper for it."""

    __slots__ = ("attributes", "joined", "modes", "overrides")

    def __init__(self) -> None:
        self.attributes = NOTHING
        #: How its local transactions begin.
        self.modes = NOTHING
        #: Of a plain handle.
        self.overrides: SessionOverrides | None = None
        #: It was taken outside a transaction, and joined one.
        self.joined = False

    def restore(self) -> None:
        """The physical connection is given back."""
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
        return self if handle is None else handle._get(self._name)

    def __set__(self, handle: Any, value: Any) -> None:
        handle._set(self._name, value)


class CursorAttribute(Attribute):
    """An attribute of the driver's cursor, as a property of ours."""

    def __get__(self, cursor: Any, owner: type) -> Any:
        return self if cursor is None else getattr(cursor._raw, self._name)

    def __set__(self, cursor: Any, value: Any) -> None:
        setattr(cursor._raw, self._name, value)
