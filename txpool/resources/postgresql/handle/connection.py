"""psycopg's connection, and its blocks of transaction(), over a pooled connection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg.abc import AdaptContext
from psycopg.adapt import AdaptersMap
from psycopg.pq import Format, PGconn, TransactionStatus
from psycopg.transaction import OutOfOrderTransactionNesting

from txpool.dbapi.driver_attributes import Attribute, forwards
from txpool.dbapi.refusals import autocommit_refused, disturbed, mode_too_late
from txpool.errors import InterfaceError, described, translated
from txpool.resources.postgresql.handle.cursor import ExecutedCursor, PsycopgCursor, UserCursor, require_seen
from txpool.resources.postgresql.handle.two_phase import TwoPhaseConnection
from txpool.resources.postgresql.session.libpq import IDLE
from txpool.resources.postgresql.session.psycopg_private import OPEN_BLOCKS, statement_in, two_phase_of
from txpool.resources.postgresql.statements.statement_text import text_of_query

if TYPE_CHECKING:
    from txpool.dbapi.enlistment import Enlistment
    from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection

logger = logging.getLogger("txpool")

BINARY = Format.BINARY

_FACTORIES = frozenset({"cursor_factory", "server_cursor_factory"})
_CANCELS = frozenset({"cancel", "cancel_safe"})
_NO_WORK = (IDLE, int(TransactionStatus.UNKNOWN))


class TransactionBlock(psycopg.Transaction):
    """A block of conn.transaction(). It stays on the physical connection on which it was begun."""

    def __init__(self, handle: PsycopgConnection, savepoint_name: str | None, force_rollback: bool) -> None:
        self._handle = handle
        self._enlistment = handle.current_enlistment()
        home: Any = handle.holder()
        self._home, self._use = home, home.uses
        self._mark: Any = None
        super().__init__(handle.raw_connection(), savepoint_name, force_rollback)

    @property
    def connection(self) -> Any:
        return self._handle

    def __enter__(self) -> Self:
        enlistment = self._enlistment
        overrides = self._handle.own_overrides() if enlistment is None else enlistment.own_overrides()
        # A block may outlive what it stands on.
        overrides.at_the_end[OPEN_BLOCKS] = 0
        if enlistment is None:
            with translated():
                return super().__enter__()
        with enlistment.started(self._handle, reads=True):
            if self.pgconn.transaction_status == TransactionStatus.IDLE:
                enlistment.raw.execute("")  # psycopg begins: else the block would begin, and commit
            super().__enter__()
            # Even if nobody has savepoints yet: those that are opened in the block end with it.
            self._mark = enlistment.own_savepoints().enter_block()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        enlistment = self._enlistment
        home: Any = self._home
        left = enlistment is None and (home.uses != self._use or self._handle.pooled is not home)
        if home.pool_state is None or left:
            return self._left_behind(error)
        if enlistment is None:
            with translated():
                return super().__exit__(kind, error, trace)
        with enlistment.lock, translated():
            if enlistment.settled:  # the connection may be another transaction's by now
                return self._left_behind(error)
            try:
                return super().__exit__(kind, error, trace)
            except OutOfOrderTransactionNesting as refused:  # what was to be undone was not
                enlistment.owner().set_rollback_only(refused)  # type: ignore[union-attr]
                raise
            finally:
                if self._mark is not None:
                    undone = self.status is not self.Status.COMMITTED
                    enlistment.savepoints.leave_block(self._mark, undone=undone)  # type: ignore[union-attr]
                    if undone and self._mark.disturbed:
                        cause = disturbed(enlistment.datasource.name, enlistment.gtrid)
                        enlistment.owner().set_rollback_only(cause)  # type: ignore[union-attr]

    def _left_behind(self, error: BaseException | None) -> bool:
        """Leave it after the end of its connection, or of the transaction around it: what was done in it ended so, too.

        After the connection's close() psycopg raises nothing here.
        """
        self.status = self.Status.FAILED
        home: Any = self._home
        if error is None and home.pool_state is None:
            raise InterfaceError("a conn.transaction() block is the parent process's, which goes on with it")
        if error is None and self._enlistment is not None:
            raise self._handle.closed_error(
                f"a conn.transaction() block has outlived {self._enlistment.gtrid} around it "
                f"({self._enlistment.how_it_ended}): what was done in it ended with that"
            )
        if error is None and not self._handle.closed:
            raise InterfaceError(
                "a conn.transaction() block was left after its connection had joined another transaction: the block "
                "has committed nothing. What was done on the connection since then is open: commit() or rollback() it"
            )
        if error is None:
            logger.warning(
                "a conn.transaction() block has outlived its connection: what was done in it has rolled back"
            )
        return False


def _closed_connection() -> psycopg.Connection[Any]:
    pgconn = PGconn.connect_start(b"=")  # which opens nothing
    pgconn.finish()
    return psycopg.Connection(pgconn)


@forwards({*dir(psycopg.Connection), *vars(_closed_connection())})
class PsycopgConnection(TwoPhaseConnection):
    """A connection as psycopg has it: attributes of the user's own can be set on it, too."""

    __slots__ = ("__dict__",)

    _cursor_class = PsycopgCursor
    _driver_class = psycopg.Connection
    _CLOSED = psycopg.OperationalError
    _MODES = frozenset({"autocommit", "isolation_level", "read_only", "deferrable"})
    _CONCURRENT = frozenset({*_CANCELS, "fileno", "xid"})
    _EXECUTING = frozenset({"wait"})

    autocommit = Attribute()
    isolation_level = Attribute()
    read_only = Attribute()
    deferrable = Attribute()
    row_factory = Attribute()
    cursor_factory = Attribute()
    server_cursor_factory = Attribute()
    prepare_threshold = Attribute()
    prepared_max = Attribute()

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        """As psycopg's, of the connection's cursor_factory or server_cursor_factory."""
        state = self.handle_state
        own = state is not None and not _FACTORIES.isdisjoint(state.attributes)
        return (UserCursor if own else PsycopgCursor)(self, args, kwargs)

    def execute(self, query: Any, params: Any = None, *, prepare: bool | None = None, binary: bool = False) -> Any:
        """Execute on a new cursor, and return that."""
        if self.enlistment is not None and self.handle_state is None and not binary:
            cursor = ExecutedCursor(self)
            if prepare is None:
                cursor.execute(query, params)
            else:
                cursor.execute(query, params, prepare=prepare)
            cursor.give_raw_back()
            return cursor
        cursor = self.cursor()
        if binary:
            cursor.format = BINARY
        if prepare is None:
            return cursor.execute(query, params)
        return cursor.execute(query, params, prepare=prepare)

    def notifies(self, *, timeout: float | None = None, stop_after: int | None = None) -> Iterator[psycopg.Notify]:
        """As psycopg's; inside a transaction nobody else can use the connection meanwhile."""
        enlistment = self.current_enlistment()
        if enlistment is None:
            with translated():
                yield from self.raw_connection().notifies(timeout=timeout, stop_after=stop_after)
            return
        with enlistment.entered(self):
            yield from enlistment.raw.notifies(timeout=timeout, stop_after=stop_after)

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """As psycopg's, for its cursors that are made over this connection."""
        enlistment = self.current_enlistment()
        if enlistment is not None:
            require_seen(self, enlistment, self._statement_in("wait", args, kwargs))
        try:
            return self._call("wait", args, kwargs)
        finally:
            holder: Any = self.holder()
            if holder is not None:
                holder.raw.changed = holder.raw.prepared = True  # what was executed is not seen

    def _statement_in(self, name: str, args: Any, kwargs: Any) -> Any:
        return statement_in(args[0] if args else None) if name == "wait" else None

    def _call_now(self, name: str, args: Any, kwargs: Any) -> Any:
        home: Any = self.holder()
        if name in _CANCELS and home is not None:
            home.mark_unreusable()  # the cancel may arrive when this connection has been given back
        return super()._call_now(name, args, kwargs)

    def __enter__(self) -> Self:
        return self  # psycopg does not look whether it is closed

    @contextmanager
    def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> Iterator[TransactionBlock]:
        """A block as psycopg's; inside a transaction it is a savepoint."""
        block = TransactionBlock(self, savepoint_name, force_rollback)
        if self.raw_connection().pgconn.pipeline_status:
            # The block's end is answered where it stands, as psycopg has it.
            with self.pipeline(), block, self.pipeline():
                yield block
        else:
            with block:
                yield block

    @contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        """Pipeline mode, as psycopg's; inside a transaction nobody else can use the connection until its block ends."""
        enlistment = self.current_enlistment()
        if enlistment is None:
            with translated(), self.raw_connection().pipeline() as pipeline:
                yield pipeline
            return
        with enlistment.started(self, kind="pipeline"):
            outermost, enlistment.in_pipeline = not enlistment.in_pipeline, True
            try:
                with enlistment.raw.pipeline() as pipeline:
                    yield pipeline
                    enlistment.pooled.since = monotonic()  # type: ignore[union-attr]  # its end waits for the answers
            finally:
                enlistment.in_pipeline = not outermost
                enlistment.raw.changed = enlistment.raw.prepared = True  # its answers were not seen

    @property
    def adapters(self) -> AdaptersMap:
        """The adapters of this connection; they are dropped when it is closed."""
        if self.closed:
            mine: AdaptersMap = self.raw_connection().adapters
            return mine
        if "_adapters" not in self._own_state().attributes:
            self.use_adapters(self.raw_connection())
        adapters: AdaptersMap = self._own_state().attributes["_adapters"]
        return adapters

    def use_adapters(self, context: AdaptContext) -> None:
        """Take a copy of these adapters, as psycopg's connect() does of its argument `context`."""
        self.set_attribute("_adapters", AdaptersMap(context.adapters))

    @property
    def connection(self) -> Self:
        return self

    @property
    def broken(self) -> bool:
        """True if the physical connection was lost."""
        home: Any = self.holder()
        return home is not None and self._datasource is not None and bool(home.raw.broken)

    def add_notice_handler(self, callback: Callable[[Any], None]) -> None:
        """As psycopg's, for as long as this handle works."""
        self.set_attribute("_notice_handlers", [*self.get_attribute("_notice_handlers"), callback])

    def remove_notice_handler(self, callback: Callable[[Any], None]) -> None:
        self.set_attribute("_notice_handlers", _without(self.get_attribute("_notice_handlers"), callback))

    def add_notify_handler(self, callback: Callable[[Any], None]) -> None:
        """As psycopg's, for as long as this handle works."""
        self.set_attribute("_notify_handlers", [*self.get_attribute("_notify_handlers"), callback])

    def remove_notify_handler(self, callback: Callable[[Any], None]) -> None:
        self.set_attribute("_notify_handlers", _without(self.get_attribute("_notify_handlers"), callback))

    def set_autocommit(self, value: bool) -> None:
        self.autocommit = value

    def set_isolation_level(self, value: Any) -> None:
        self.isolation_level = value

    def set_read_only(self, value: bool | None) -> None:
        self.read_only = value

    def set_deferrable(self, value: bool | None) -> None:
        self.deferrable = value

    def _carry_modes(self, raw: PsycopgRawConnection, modes: Mapping[str, Any]) -> None:
        for name, value in modes.items():
            if name != "autocommit" and value != getattr(raw, name):
                setattr(raw, name, value)

    def _set_mode(self, enlistment: Enlistment, name: str, value: Any) -> None:
        if name != "autocommit":
            if value != getattr(enlistment.raw, name):
                try:
                    setattr(enlistment.raw, name, value)
                except psycopg.ProgrammingError as error:  # the transaction has begun
                    raise psycopg.ProgrammingError(
                        mode_too_late(name, value, enlistment.datasource.name, enlistment.gtrid)
                    ) from error
        elif value:
            raise autocommit_refused(enlistment.datasource.name, enlistment.gtrid)

    def text_of_statement(self, statement: Any) -> bytes | str:
        return super().text_of_statement(statement) or text_of_query(statement)

    def has_work(self, raw: PsycopgRawConnection) -> bool:
        pgconn = raw.pgconn
        status = pgconn.transaction_status
        if status not in _NO_WORK or two_phase_of(raw) is not None:
            return True
        # In a pipeline the status is of what was answered, and more may have been sent.
        return status == IDLE and bool(pgconn.pipeline_status)

    def __repr__(self) -> str:
        home: Any = self.holder()
        if home is None and not self.closed:
            return super().__repr__()
        status = "BAD" if self.closed else TransactionStatus(home.raw.pgconn.transaction_status).name
        return f"{super().__repr__()[:-1]} [{status}]>"

    def _make_closed_raw(self) -> Any:
        return _closed_connection()

    def _leave_block(self, *, failed: bool) -> None:
        try:
            if failed:
                self._roll_back_quietly()
            else:
                self.commit()
        finally:
            self.close()

    def _roll_back_quietly(self) -> None:
        if self.pooled is not None and self.pooled.pool_state is None:
            return  # a forked child leaves the block, and the work is its parent's
        try:
            self.rollback()
        except Exception as error:
            logger.warning("%r: rolling back after an error failed: %s", self, described(error))


def _without(handlers: list[Any], callback: Any) -> list[Any]:
    rest = [*handlers]
    rest.remove(callback)
    return rest
