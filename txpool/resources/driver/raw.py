"""The names of what every driver has, and each has otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

#: A connection of a driver's own. Only its database's folder, which names its class there, looks into it: all else
#: hands it on.
RawConnection: TypeAlias = Any


class Executes(Protocol):
    """Whatever executes a statement of txpool's own, and answers with a cursor: a connection, or a cursor."""

    def execute(self, statement: Any, parameters: Any = ..., /) -> Any: ...


class SqlCursor(Executes, Protocol):
    """A cursor for statements of txpool's own: one that a user holds, or the driver's."""

    @property
    def rowcount(self) -> int: ...
    @property
    def connection(self) -> Any: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> Sequence[Any]: ...
