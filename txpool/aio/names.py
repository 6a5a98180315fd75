"""psycopg's names on what a task holds: read at once, set, or awaited. What is none of these is refused by name.

Another driver's connection has those that its synchronous one has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from txpool.errors import NotSupportedError

T = TypeVar("T")

#: Of the connection: what asks no server.
READ = (
    *("adapters", "autocommit", "broken", "connection", "deferrable", "fileno", "info", "isolation_level", "pgconn"),
    *("add_notice_handler", "add_notify_handler", "read_only", "remove_notice_handler", "remove_notify_handler", "xid"),
    *("Warning", "Error", "InterfaceError", "DatabaseError", "DataError", "OperationalError", "IntegrityError"),
    *("InternalError", "ProgrammingError", "NotSupportedError"),
)
SET = ("cursor_factory", "prepare_threshold", "prepared_max", "row_factory", "server_cursor_factory")
FACTORIES = ("cursor_factory", "server_cursor_factory")
AWAITED = ("set_deferrable", "set_isolation_level", "set_read_only", "tpc_begin", "tpc_recover", "wait")
#: Cancelled, they go on to their end.
SHIELDED = ("tpc_commit", "tpc_prepare", "tpc_rollback")
#: Of the connection: what would hold the loop, and what to write for it.
INSTEAD = {"cancel": "write `await cancel_safe()`", "connect": "write `await txpool.aconnect(…)`"}

#: Of a cursor, as they stand before its first statement: what is read, and what is set.
OF_CURSOR: dict[str, Any] = {
    "description": None,
    "lastrowid": None,
    "name": None,
    "pgresult": None,
    "rowcount": -1,
    "rownumber": None,
    "scrollable": None,
    "statusmessage": None,
    "withhold": False,
}
SET_ON_CURSOR: dict[str, Any] = {"arraysize": 1, "format": None, "itersize": 100, "row_factory": None}


def asynchronous(kind: type) -> Any:
    """psycopg's asynchronous class of a connection or cursor, for its synchronous one, or for what derives from that.

    None for another driver's.
    """
    for each in kind.__mro__:
        if each.__module__.startswith("psycopg"):
            import psycopg

            return getattr(psycopg, f"Async{each.__name__}", None)
    return None


class FromSynchronous:
    """An attribute of the synchronous connection or cursor."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, it: Any, owner: type) -> Any:
        return self if it is None else it.read(self._name)

    def __set__(self, it: Any, value: object) -> None:
        name = self._name
        instead = f": write `await set_{name}(…)`" if f"set_{name}" in (*AWAITED, "set_autocommit") else ""
        raise AttributeError(f"{name!r} cannot be set in an event loop{instead}. Nothing was done")


class SettableThere(FromSynchronous):
    """One that can be set."""

    __slots__ = ()

    def __set__(self, it: Any, value: object) -> None:
        it.write(self._name, value)


class CursorFactory(SettableThere):
    """A class of cursors. Of psycopg's own the synchronous one is set, since that is what works underneath."""

    __slots__ = ()

    def __get__(self, it: Any, owner: type) -> Any:
        value = super().__get__(it, owner)
        return asynchronous(value) if getattr(value, "__module__", "").startswith("psycopg") else value

    def __set__(self, it: Any, value: Any) -> None:
        import psycopg

        if isinstance(value, type) and issubclass(value, psycopg.AsyncCursor | psycopg.AsyncServerCursor):
            name = value.__name__
            if getattr(psycopg, name, None) is not value:
                raise NotSupportedError(
                    f"{name} cannot be {self._name}, since the cursors underneath are synchronous: derive it from "
                    f"psycopg.{value.__mro__[1].__name__.removeprefix('Async')}, with plain methods. Nothing was set"
                )
            value = getattr(psycopg, name.removeprefix("Async"))
        super().__set__(it, value)


def _awaited(name: str, *, shielded: bool) -> Callable[..., Any]:
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await self.call(partial(self.read(name), *args, **kwargs), shielded=shielded)

    call.__name__ = name
    return call


def has_names(
    read: Iterable[str], settable: Iterable[str], awaited: Iterable[str] = (), shielded: Iterable[str] = ()
) -> Callable[[type[T]], type[T]]:
    """A decorator: the class has these names. It has `read` and `write` for them, and for the awaited ones `call`."""

    def decorate(cls: type[T]) -> type[T]:
        made: dict[str, object] = {name: FromSynchronous(name) for name in read}
        made |= {name: (CursorFactory if name in FACTORIES else SettableThere)(name) for name in settable}
        made |= {name: _awaited(name, shielded=False) for name in awaited}
        made |= {name: _awaited(name, shielded=True) for name in shielded}
        for name, attribute in made.items():
            setattr(cls, name, attribute)
        return cls

    return decorate
