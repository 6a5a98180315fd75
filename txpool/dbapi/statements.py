"""What handles do on the physical connection of a transaction: statements, and what they override there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import current_thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from txpool import loops
from txpool.dbapi.driver_attributes import NO_ATTRIBUTES, SessionOverrides
from txpool.dbapi.managed_commit import SavepointStack
from txpool.dbapi.refusals import (
    ended_by_sql,
    fixed_by_transaction,
    of_dropped_transaction,
    would_end,
)
from txpool.errors import Error, translate, translated
from txpool.locks import RLock
from txpool.pool import Pool, Pooled
from txpool.tm.completion.status import ACTIVE
from txpool.tm.enlistment import Enlists, TakesPart

if TYPE_CHECKING:
    from txpool.dbapi.handle import Handle
    from txpool.resources.base import BegunBy, MarkedBranch, OpenBranch
    from txpool.resources.driver.driver import BeginsWithStatement, Driver
    from txpool.resources.driver.raw import RawConnection
    from txpool.sql.dialects import SqlDialect
    from txpool.sql.kept import KeptAnswers
    from txpool.tm.rules.required import Required


class BeginsWork(Protocol):
    """A resource manager, as the part of a transaction uses it."""

    def begin(self, source: Any, transaction: BegunBy, timeout: float | None) -> tuple[Any, Any]: ...


class PooledDatasource(TakesPart[Any], Protocol):
    """A datasource, as the connections of its pool know it."""

    pool: Pool[Any]
    driver_adapter: Driver
    required: Required | None
    joins_commits: bool
    names_early: bool
    transaction_commands: KeptAnswers[bytes | str, str] | None
    begins_with: BeginsWithStatement | None

    @property
    def resource_manager(self) -> BeginsWork: ...

    def sql_of(self, raw: Any) -> SqlDialect | None: ...


class EnlistedStatements:
    """The statements of one datasource's part in a transaction. `Enlistment` adds the part itself, and its lock."""

    __slots__ = ("_fresh", "doing", "overrides")

    overrides: SessionOverrides | None
    #: The block that holds the connection, and whose that is, for people; empty if none does.
    doing: str
    _fresh: bool

    if TYPE_CHECKING:
        datasource: PooledDatasource
        gtrid: str
        owner: Callable[[], Enlists | None]
        lock: RLock
        branch: OpenBranch | MarkedBranch
        pooled: Pooled[Any] | None
        raw: RawConnection
        savepoints: SavepointStack | None
        fixed_modes: frozenset[str]
        in_pipeline: bool
        _given_up: bool
        _driver: Driver
        _transaction_commands: Any

    @property
    def is_fresh(self) -> bool:
        """Whether no statement has been sent in it."""
        return self._fresh

    def begin_use(self, handle: Handle) -> Enlists:
        """Under the lock: raise if no work may be done, and set what this handle has overridden."""
        transaction = self.owner()
        if transaction is None:
            raise of_dropped_transaction(self.datasource.name, self.gtrid)
        if transaction.status is not ACTIVE:
            transaction.require_active()
        state = handle.handle_state
        if state is not None or self.overrides is not None:
            self._override(NO_ATTRIBUTES if state is None else state.attributes)
        return transaction

    def _override(self, attributes: Mapping[str, Any]) -> None:
        if self.overrides is not None or attributes is not NO_ATTRIBUTES:
            self.own_overrides().apply(attributes)

    def own_overrides(self) -> SessionOverrides:
        """What handles have overridden on its connection; restored at the transaction's end."""
        if self.overrides is None:
            self.overrides = SessionOverrides(self.raw)
        return self.overrides

    def without_fixed(self, modes: Mapping[str, Any]) -> Mapping[str, Any]:
        """A handle's own modes, without those that the transaction has set."""
        return {name: value for name, value in modes.items() if name not in self.fixed_modes}

    def require_not_fixed(self, name: str, value: object) -> None:
        """ProgrammingError if a handle would change what the transaction has set."""
        if name in self.fixed_modes and value != getattr(self.raw, name):
            raise fixed_by_transaction(name, value, self.gtrid)

    def start(self, handle: Handle, statement: Any = None, *, executes: bool = False) -> bool:
        """Before a statement, under the lock; the caller must `finish` or `failed` it, unless this raises.

        ProgrammingError if the statement, as the user gave it, would surely end the transaction: nothing was sent.
        If it returns true, a statement that `executes` by the driver's execute() has to do so by `execute_first`.
        """
        first = False
        try:
            transaction = self.begin_use(handle)
            commands = self._transaction_commands
            if statement is not None and commands is not None:
                command = commands[statement if type(statement) is str else handle.text_of_statement(statement)]
                if command:
                    raise would_end(command, self.datasource.name, self.gtrid)
            if self._fresh:
                # A label and a savepoint come between BEGIN and the statement.
                apart = transaction.label or self.savepoints is not None
                first = executes and not apart and self.datasource.begins_with is not None
                self._fresh = first or not self._driver.begin(self.raw, transaction.label)
            elif self.in_pipeline:
                self._require_not_ended()
            if self.savepoints is not None:
                self.savepoints.open(handle, joins=handle.joins_commits)
            self.pooled.since = monotonic()  # type: ignore[union-attr]
        except BaseException as error:
            translate(error)
            raise
        return first

    def execute_first(self, raw_cursor: Any, statement: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Execute the statement that begins the transaction."""
        self._fresh = False  # behind an interrupt, too
        try:
            if self.datasource.begins_with.execute_first(self.raw, raw_cursor, statement, args, options):  # type: ignore[union-attr]
                return
            self._driver.begin(self.raw)
        except BaseException:
            self._fresh = not self._driver.dialect.in_transaction(self.raw)
            raise
        raw_cursor.execute(statement, *args, **options)  # if it has ended the transaction, that is not fresh again

    def _require_not_ended(self) -> None:
        """In a pipeline only the next statement sees that the user's own SQL has ended the transaction."""
        if self._driver.is_open(self.raw) and not self._driver.dialect.in_transaction(self.raw):
            raise self.ended_by_sql("commit")

    def finish(self, raw_cursor: Any) -> None:
        """After a statement: raise if it was the user's own COMMIT or ROLLBACK."""
        self._fresh = False
        command = None if self.in_pipeline else self._driver.ended_by(self.raw, raw_cursor)
        self.pooled.since = 0.0  # type: ignore[union-attr]
        if command is not None:
            raise self.ended_by_sql(command)

    def failed(self, raw_cursor: Any, error: BaseException) -> None:
        """After a statement that failed, and may have followed the user's own COMMIT in one message."""
        translate(error)
        self._explain(error)
        self._driver.note_failure(self.raw, raw_cursor, error)
        if self._fresh and not self._driver.reached_server(error):
            self.pooled.since = 0.0  # type: ignore[union-attr]
        else:
            self.finish(raw_cursor)

    def _explain(self, error: BaseException) -> None:
        """Raise what says so if the connection was closed under this, since the transaction rolls back."""
        if self._given_up and isinstance(error, Exception):
            why = (
                f"{self.gtrid} rolls back, and has not waited any longer for this, which held the connection of "
                f"{self.datasource.name}: that is closed. Nothing of it stays"
            )
            raise translate(self._driver.module.OperationalError(why)) from error

    @contextmanager
    def entered(self, handle: Handle) -> Iterator[None]:
        """Lock around a block that executes no statement."""
        with self.lock:
            self.begin_use(handle)
            try:
                with translated():
                    yield
            except Exception as error:
                self._explain(error)
                raise

    @contextmanager
    def started(
        self, handle: Handle, statement: Any = None, *, reads: bool = False, kind: str = "call"
    ) -> Iterator[None]:
        """Lock around a block that executes without a cursor of ours. ProgrammingError as `start`.

        Whether the user's own SQL has ended the transaction is seen by the connection's state before and after it. With
        `reads` true, the block executes nothing that writes. `kind` is what people call it.
        """
        with self.lock:
            self.start(handle, statement)
            if not reads:
                self._driver.dialect.note_write(self.raw)
            fresh, around = self._fresh, self.doing
            self.doing = f"a {kind} of {_here()}"
            try:
                with translated():
                    yield
            except Exception as error:
                self._explain(error)
                self._driver.note_failure(self.raw, None, error)
                raise
            finally:
                over = not handle.has_work(self.raw) and self._driver.is_open(self.raw)
                fresh = fresh and self._fresh  # a statement in a pipeline has begun it, too
                self._fresh, self.doing = fresh and over, around
                self.pooled.since = 0.0  # type: ignore[union-attr]
                if over and not fresh and not self.in_pipeline:
                    raise self.ended_by_sql("commit")

    def ended_by_sql(self, command: str) -> Error:
        """The user's own SQL has ended the local transaction: the error that says so."""
        error = ended_by_sql(command, self.datasource.name, self.gtrid)
        self.branch.ended_by_sql(command)
        transaction = self.owner()
        if transaction is not None:  # one that was dropped rolls back anyway
            transaction.set_rollback_only(error)
        return error


def _here() -> str:
    """The thread, or the task, in which this is called, for people."""
    call = loops.current() if loops.used else None
    return f"thread {current_thread().name!r}" if call is None else f"task {call.task_name!r}"
