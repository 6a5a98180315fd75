"""The connections and cursors that users hold, over a pooled connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from txpool.dbapi.connection import PEP249Connection
from txpool.dbapi.cursor import Cursor
from txpool.dbapi.driver_attributes import Attribute, forwards
from txpool.dbapi.open_results import OpenResults, close_open, hold_open
from txpool.pool import Pooled
from txpool.resources.jdbc.dbapi import errors
from txpool.resources.jdbc.dbapi.connection import JdbcConnection

if TYPE_CHECKING:
    from txpool.dbapi.enlistment import Enlistment
    from txpool.dbapi.statements import PooledDatasource
    from txpool.resources.jdbc.session import XaConnection

#: What users have of the driver's connection beside the properties and methods below. The rest would leave the
#: transaction, or the pool.
_OF_THE_DRIVER = frozenset(
    {"cancel", "gives_keys", "in_transaction", "java", "lost", "ping", "product", "set_network_timeout", "version"}
)


class JdbcHandleCursor(Cursor):
    """A cursor, with qmark parameters."""

    __slots__ = ()

    _CLOSED = errors.InterfaceError

    def _make_raw(self, raw: XaConnection, holder: Any) -> Any:
        cursor = super()._make_raw(raw, holder)
        hold_open(holder, cursor)  # a result that is not read to its end keeps a statement open in the database
        return cursor

    def _executed(self) -> None:
        self._note_session()


@forwards(_OF_THE_DRIVER)
class JdbcHandle(PEP249Connection):
    """A connection over JDBC. `java` is its java.sql.Connection: what is done by it, nobody sees."""

    __slots__ = ("cursors",)

    _cursor_class = JdbcHandleCursor
    _driver_class = JdbcConnection
    _CLOSED = errors.InterfaceError
    _MODES = frozenset({"autocommit", "isolation", "read_only"})
    _CONCURRENT = frozenset({"cancel"})

    autocommit = Attribute()
    isolation = Attribute()
    read_only = Attribute()
    query_timeout = Attribute()
    fetch_size = Attribute()

    def __init__(self, datasource: PooledDatasource, pooled: Pooled[Any] | None, enlistment: Enlistment | None) -> None:
        super().__init__(datasource, pooled, enlistment)
        #: The raw cursors of a plain handle.
        self.cursors: OpenResults = set()
        if pooled is not None:
            pooled.results = self.cursors

    def execute(self, operation: str, parameters: Sequence[Any] | None = None) -> Any:
        """Execute a statement on a new cursor, and return that."""
        return self.cursor().execute(operation, parameters)

    @property
    def closed(self) -> bool:
        """True after close(), after the end of the transaction in which it was taken, or if it is lost."""
        if self.pooled is not None:
            return bool(self.pooled.raw.lost)
        return self._why_closed() is not None

    def has_work(self, raw: XaConnection) -> bool:
        return not raw.lost and bool(raw.started or raw.begun or raw.in_transaction)

    def _leave_block(self, *, failed: bool) -> None:
        try:
            super()._leave_block(failed=failed)
        finally:
            self.close()

    def _attach(self) -> None:
        super()._attach()
        self.pooled.results = self.cursors  # type: ignore[union-attr]

    def _before_give_back(self, pooled: Pooled[Any], datasource: PooledDatasource) -> None:
        close_open(self.cursors)
        super()._before_give_back(pooled, datasource)
