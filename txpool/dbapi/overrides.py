"""Attributes of the driver's connection, as a handle sets them: its own while it works, and taken back afterwards.

Handles that share a physical connection do not see each other's: whoever works on it wears its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Wardrobe:
    """What is worn on one raw connection, and what was there before. Used under the connection's own order."""

    __slots__ = ("_before", "_raw", "_worn", "at_the_end")

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._before: dict[str, Any] = {}
        self._worn = NOTHING
        #: Values to be set once it is given back, whoever wore what.
        self.at_the_end: dict[str, Any] = {}

    def wear(self, attributes: Mapping[str, Any]) -> None:
        """Take off what another handle wore, and put this on."""
        if attributes is self._worn:
            return
        for name in self._worn.keys() - attributes.keys():
            setattr(self._raw, name, self._before[name])
        for name, value in attributes.items():
            self._before.setdefault(name, getattr(self._raw, name))
            setattr(self._raw, name, value)
        self._worn = attributes

    def strip(self) -> None:
        """Leave the raw connection as it was found."""
        self.wear(NOTHING)
        for name, value in self.at_the_end.items():
            setattr(self._raw, name, value)


class Own:
    """What a handle has beyond its connection, once it has anything: most never do, and are cheaper for it."""

    __slots__ = ("attributes", "joined", "modes", "wardrobe")

    def __init__(self) -> None:
        self.attributes = NOTHING
        #: How its local transactions begin.
        self.modes = NOTHING
        #: Of a plain handle.
        self.wardrobe: Wardrobe | None = None
        #: It was taken outside a transaction, and joined one.
        self.joined = False

    def strip(self) -> None:
        """The physical connection is given back."""
        if self.wardrobe is not None:
            self.wardrobe.strip()
            self.wardrobe = None


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
