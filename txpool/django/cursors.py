"""Cursors that follow their alias into a transaction, and out of it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _Base = Any
else:
    _Base = object

#: What else of a driver's cursor sends a statement.
_STATEMENTS = frozenset({"copy", "stream", "executescript"})


class Following(_Base):
    """What a cursor of Django's does before each statement: that runs where one of a cursor opened now would run.

    Django's own code opens a cursor and enters `atomic` then, as its cache in the database does; and the alias has
    another connection in there. Rows that were not read stay behind. A cursor that was closed stays closed.
    """

    #: The connection that it was opened on, and how often the alias had been closed then.
    opened: tuple[Any, int]
    cursor: Any

    def close(self) -> None:
        self.opened = None, -1
        self.cursor.close()

    def _follow(self) -> None:
        connection, times_closed = self.opened
        if times_closed != self.db.times_closed:
            return  # the driver says that it is closed
        self.db.prepare_session()
        if connection is not self.db.connection:
            self.db.validate_thread_sharing()
            with self.db.wrap_database_errors:
                self.cursor = self.db.create_cursor(getattr(self.cursor, "name", None))
            self.opened = self.db.connection, times_closed

    def _execute(self, sql: Any, *args: Any) -> Any:
        if self.opened[1] == self.db.times_closed and self.db.executes_outside(sql):
            with self.db.cursor_outside() as self.cursor:
                self.opened = None, self.opened[1]
                return super()._execute(sql, *args)
        self._follow()
        return super()._execute(sql, *args)

    def _executemany(self, *args: Any) -> Any:
        self._follow()
        return super()._executemany(*args)

    def callproc(self, *args: Any, **options: Any) -> Any:
        self._follow()
        return super().callproc(*args, **options)

    def debug_sql(self, *args: Any, **options: Any) -> Any:
        if not options:  # copy(): the others follow by themselves
            self._follow()
        return super().debug_sql(*args, **options)

    def __getattr__(self, name: str) -> Any:
        if name in _STATEMENTS:
            self._follow()
        return super().__getattr__(name)


@cache
def _following(wrapper: Any) -> Any:
    return type(wrapper.__name__, (Following, wrapper), {"__module__": wrapper.__module__})


def following(cursor: Any) -> Any:
    """Make it one that follows, in place: whichever of Django's it is."""
    wrapper: Any = type(cursor)
    cursor.__class__ = _following(wrapper)
    cursor.opened = cursor.db.connection, cursor.db.times_closed
    return cursor
