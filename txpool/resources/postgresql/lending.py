"""psycopg's cursor of a user's cursor that is gone serves the next one."""

from __future__ import annotations

from sys import getrefcount
from types import SimpleNamespace
from typing import Any

import psycopg

from txpool.resources.postgresql.connection import DeadlineConnection
from txpool.resources.postgresql.psycopg_private import LAST_QUERY, query_of

#: Bytes of a statement and its parameters that may stay in memory as long as a connection is idle.
_LITTLE = 65536


class LendingConnection(DeadlineConnection):
    """A connection that lends its cursors: to make one takes a third of the time that a small statement takes."""

    #: The cursor that was lent last, as long as another may have it afterwards.
    spare: psycopg.Cursor[Any] | None = None

    def lend_cursor(self) -> psycopg.Cursor[Any]:
        """A cursor as a new one, but for its last result: that of before, where nothing else refers to it any more.

        The references are counted, since no weak reference tells the same: the garbage collector clears it before it
        calls finalisers, which may use the cursor once more. So it is safe in any thread, and in a finaliser: whoever
        has taken it, and not returned yet, refers to it. Called while the connection has its own factories and
        adapters, and is in no pipeline.
        """
        cursor = self.spare
        # A finaliser may take, and replace, the spare one between any two of these.
        if cursor is None or getrefcount(self.spare) != _FREE or cursor is not self.spare:
            cursor = self.spare = psycopg.Cursor(self)
        else:
            setattr(cursor, LAST_QUERY, None)  # the session may have another encoding by now
        return cursor

    def keeps_little(self) -> bool:
        """Whether what the cursor to be lent has sent last is small: psycopg keeps that until the next statement."""
        query = None if self.spare is None else query_of(self.spare)
        return query is None or len(query.query) + sum(map(len, filter(None, query.params or ()))) <= _LITTLE


def _count(holder: Any) -> int:
    cursor = holder.spare  # noqa: F841 - counted, as in lend_cursor
    return getrefcount(holder.spare)


#: The references to a cursor that only its connection has, as `lend_cursor` counts them.
_FREE = _count(SimpleNamespace(spare=object()))
