"""DataSource: a named, configured database with its pool and its branches; and how each source is opened."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from txpool.config.secrets import Secret
from txpool.config.settings import DataSourceSettings
from txpool.config.settings.credentials import CredentialsFunction
from txpool.datasource import registry
from txpool.datasource.administration import PoolAdministration
from txpool.datasource.source import Source
from txpool.dbapi.connection import PEP249Connection
from txpool.dbapi.enlistment import Enlistment
from txpool.dbapi.types import add_driver
from txpool.errors import ConfigurationError, NotSupportedError, ProgrammingError
from txpool.jobs import spark
from txpool.pool import Pool, PoolListener
from txpool.pool.pooled import Pooled
from txpool.process.finishing import LIMIT, finish
from txpool.resource_managers import find_resource_manager
from txpool.resources.base import PREPARED, MarkedBranch, OpenBranch, PrepareLocation, Role
from txpool.resources.database import Database
from txpool.resources.deadlines import Deadlines
from txpool.resources.driver.driver import BeginsWithStatement
from txpool.resources.driver.local import LocalBranch
from txpool.resources.driver.making import make_driver
from txpool.resources.driver.sessions import sessions_of
from txpool.resources.manager import ResourceManager
from txpool.resources.marked.branch import MarkedTransaction
from txpool.resources.marked.branch_rows import BranchRows
from txpool.resources.marked.cleanup import CleanupQueue
from txpool.resources.marked.xids import Xids
from txpool.resources.outbox import OutboxContent, outbox_table
from txpool.resources.recovery_access import XidsTable
from txpool.tm.ambient import ambient, live
from txpool.tm.rules.required import Required, handle_modules

if TYPE_CHECKING:
    from txpool.tm.transaction import Transaction


class DataSource(PoolAdministration, Source):
    """A named database. Thread-safe; opens connections when they are needed, and keeps them in its pool.

    Options are the keys of a .properties file with underscores: `pool_max_size=5`, `managed_commit="join"`. An option
    that begins with `driver_` is passed to the driver's connect. `listeners` are told what happens in the pool.
    `credentials` is a function, or the name of one as in a file, which is called before each connection is opened: it
    returns a password, or a user and a password. A datasource is pickled without listeners; one with a function cannot
    be pickled.
    """

    enlistment_class = Enlistment

    def __init__(
        self,
        name: str | None = None,
        *,
        credentials: CredentialsFunction | str | None = None,
        listeners: Iterable[PoolListener] = (),
        **options: Any,
    ) -> None:
        self._open(DataSourceSettings.load(name=name, credentials=credentials, **options), listeners)

    def _open(self, settings: DataSourceSettings, listeners: Iterable[PoolListener] = ()) -> None:
        Source.__init__(self, settings)
        manager = self.resource_manager
        if not isinstance(manager, Database):
            raise _no_connections(settings.name, manager)
        self._database = manager
        #: Whether a connection's commit() and rollback() end its own work within a transaction.
        self.joins_commits = settings.managed_commit == "join"
        self.driver_adapter = make_driver(settings)
        add_driver(self.driver_adapter.module)
        sql = manager.sql
        #: By statement, the command in it that surely ends or begins a transaction; None if only a connection tells.
        self.transaction_commands = None if sql is None else sql.transaction_commands
        #: As `Database.sql_of`.
        self.sql_of = manager.sql_of
        #: The driver, if it can send BEGIN with a transaction's first statement.
        self.begins_with: BeginsWithStatement | None = None
        if getattr(self.driver_adapter, "execute_first", None) is not None:
            self.begins_with = cast("BeginsWithStatement", self.driver_adapter)
        self.pool: Pool[Any] = Pool(
            sessions_of(settings, self.driver_adapter),
            name=settings.name,
            min_size=settings.pool_min_size,
            max_size=settings.pool_max_size,
            max_wait=settings.pool_max_wait,
            idle_timeout=settings.pool_idle_timeout or 0.0,
            max_lifetime=settings.pool_max_lifetime or 0.0,
            keepalive=settings.pool_keepalive,
            check_bypass=settings.pool_check_bypass,
            check_timeout=settings.pool_check_timeout,
            leak_threshold=settings.pool_leak_threshold,
            reset_always=settings.pool_reset == "always",
            enabled=settings.pool_enabled,
            listeners=listeners,
            when_opened=[registry.note_used],
        )
        required = settings.transaction_required
        #: The check of statements outside transactions; None if all are allowed.
        self.required = None
        if required != "off" or spark.is_loaded():
            self.required = Required(settings.name, required)
        self._handle = manager.handle
        handle_modules.update(self._handle.handle_modules())
        #: The rows that may be deleted; None except in mode cmr.
        self._cleanup: CleanupQueue | None = None
        if self.role is Role.MARKED:
            self._xids = Xids(settings.name, self.driver_adapter, settings.cmr_table)
            self._cleanup = CleanupQueue(
                self._xids, batch_size=settings.cmr_batch_size, immediate=settings.cmr_immediate_cleanup
            )
        #: Makes the branch of a transaction on a raw connection.
        self.make_branch = self._branches(manager)
        #: Whether a task's call that works in it waits in the event loop.
        self.waits_in_loop = (
            manager.waits_in_loop
            and self.role in (Role.PREPARED, Role.ALONE)
            and getattr(self.driver_adapter, "rows_queue", None) is None
        )
        registry.note_opened(self)

    def _branches(self, manager: Database) -> Callable[[Any, Deadlines], OpenBranch | MarkedBranch]:
        if self.role is PREPARED:
            return partial(manager.branch, self.name, self.driver_adapter, file=self.settings.file)
        if self._cleanup is not None:
            return partial(
                MarkedTransaction,
                self.name,
                self.driver_adapter,
                xids=self._xids,
                cleanup=self._cleanup,
                file=self.settings.file,
            )
        return partial(LocalBranch, self.name, self.driver_adapter, role=self.role)

    @classmethod
    def from_settings(cls, settings: DataSourceSettings) -> DataSource:
        """A new datasource, which shares nothing with another of the same name."""
        datasource = cls.__new__(cls)
        datasource._open(settings)
        return datasource

    @classmethod
    def from_properties(cls, path: str | Path) -> DataSource:
        """The datasource that a file describes: the same object each time, until it is closed. ConfigurationError."""
        return as_database(open_file(path))

    @classmethod
    def from_serialized(cls, settings: Mapping[str, Any]) -> DataSource:
        """The datasource of settings that another process has serialized: the same object each time."""
        return as_database(open_serialized(settings))

    def connect(
        self, timeout: float | None = None, *, user: str | None = None, password: str | Secret | None = None
    ) -> PEP249Connection:
        """Take a connection. Inside a transaction it is enlisted in that, else it is plain.

        `timeout` is how long to wait for a free connection, in seconds; the default is pool.max-wait. With a `user` or
        a `password`, it is opened for this call, counts as one of pool.max-size, and is closed by close(). Errors:
        PoolTimeout, PoolClosed, the driver's own if it cannot connect; ProgrammingError if the transaction cannot
        enlist the datasource.
        """
        transaction = ambient()
        if user is not None or password is not None:
            return self._connect_as(user, password, transaction, timeout)
        if transaction is None:
            if self.required is not None:
                self.required.check_connecting()
            pooled = self.take(timeout)
            try:
                pooled.plain = True
                return self._handle(self, pooled, None)
            except BaseException:
                self.pool.discard(pooled)
                raise
        extent = transaction.extent
        if extent is not None and extent[1][extent[0].f_lasti] and live(transaction) is not transaction:
            return self.connect(timeout)  # an interrupt had kept that from its end
        return self._handle(self, None, transaction.enlist_datasource(self, timeout))

    def _connect_as(
        self, user: str | None, password: str | Secret | None, ambient: Transaction | None, timeout: float | None
    ) -> PEP249Connection:
        if self.resource_manager.url_is_path:
            raise ConfigurationError(
                f"datasource {self.name}: {self.resource_manager.database} knows no users, and nothing was done: "
                "leave user= and password= out of connect()"
            )
        if ambient is not None:
            raise ProgrammingError(
                f"connect(user=…) to {self.name} inside {ambient.gtrid}: it would be a branch whose owner recovery "
                "does not know. Nothing was done. Write a datasource of its own for that user, or connect outside the "
                'transaction: in a function with @transactional("not_supported")'
            )
        if self.required is not None:
            self.required.check_connecting()
        settings = self.settings.under(user, password)
        try:
            pooled = self.pool.take_separate(sessions_of(settings), timeout)
        except self.driver_adapter.module.Error as error:
            self._name_in(error, ", connect(password=…)" if user is None else f", connect(user={user!r})")
            raise
        pooled.plain = True
        return self._handle(self, pooled, None)

    def close(self) -> None:
        """Close the pool: idle connections now, others when they are given back. Delete the rows of finished marks.

        If deleting fails, or takes more than a few seconds, a warning is logged, and recovery deletes them.
        """
        Source.close(self)
        try:
            queues = filter(None, (self._cleanup, getattr(self.driver_adapter, "rows_queue", None)))
            work = [queue.pending_work() for queue in queues]
            if work:
                finish(work, monotonic() + LIMIT)
        finally:
            self.pool.close()

    # -- for transactions and recovery --------------------------------------------------------------------------

    def take(self, timeout: float | None) -> Pooled[Any]:
        """Take a physical connection. Errors: as `connect`."""
        try:
            return self.pool.take(timeout)
        except self.driver_adapter.module.Error as error:
            self._name_in(error)
            raise

    def _name_in(self, error: Exception, whose: str = "") -> None:
        # A driver's message names neither the datasource nor, in SQLite, the file.
        error.args = (f"datasource {self.name} ({self.url}{whose}): {error}", *error.args[1:])

    def xids_table(self, *, nodes: Collection[str] | None = None, lock_timeout: float = 5.0) -> XidsTable:
        if self.role is not Role.MARKED:
            return Source.xids_table(self)
        driver = make_driver(self.settings, recovery=True)
        return Xids(self.name, driver, self.settings.cmr_table, nodes=nodes, lock_timeout=lock_timeout)

    def branch_rows(self, *, nodes: Collection[str], lock_timeout: float = 5.0) -> BranchRows | None:
        if self.settings.xa_evidence != "row":
            return None
        driver = make_driver(self.settings, recovery=True)
        return BranchRows(self.name, driver, self.settings.xa_evidence_table, nodes=nodes, lock_timeout=lock_timeout)

    def look_into_outbox(self) -> OutboxContent | None:
        """What is in its outbox, as recovery.user if there is one; None if it has none. Nothing is locked or written.

        Errors: the database's own; OperationalError or NotSupportedError if the table is not one of txpool's.
        """
        part = self.resource_manager.outbox
        return None if part is None else outbox_table(part).look(make_driver(self.settings, recovery=True), self.name)

    def prepare_location(self, timeout: float | None = None) -> PrepareLocation:
        """The database in which it prepares, and its login role. Errors: as `connect`."""
        pooled = self.take(timeout)
        try:
            raw = pooled.raw
            found: PrepareLocation | None = getattr(raw, "location", None)
            return found or PrepareLocation(self.name, raw.identity, raw.role, self.settings.file)
        finally:
            self.pool.give_back(pooled)

    def open_session(self) -> Any:
        """A raw connection outside the pool, with what pool.initial-sql has set. Whoever opens it closes it."""
        return sessions_of(self.settings, self.driver_adapter).connect()


def _no_connections(name: str, manager: ResourceManager) -> NotSupportedError:
    return NotSupportedError(f"datasource {name} has no connections: {manager.instead_of_connecting}. Nothing was done")


def as_database(source: Source) -> DataSource:
    """The source, if it is a database. NotSupportedError if it is none."""
    if not isinstance(source, DataSource):
        raise _no_connections(source.name, source.resource_manager)
    return source


def open_settings(settings: DataSourceSettings) -> Source:
    """A new source, which shares nothing with another of the same name: a `DataSource` if it is a database."""
    if isinstance(find_resource_manager(settings.driver), Database):
        return DataSource.from_settings(settings)
    source = Source(settings)
    registry.note_opened(source)
    return source


def open_file(path: str | Path) -> Source:
    """The source that a file describes: the same object each time, until it is closed. ConfigurationError."""
    return registry.shared(os.path.abspath(path), lambda: open_settings(DataSourceSettings.load(path)))


def open_serialized(settings: Mapping[str, Any]) -> Source:
    """The source of settings that another process has serialized: the same object each time."""
    here = registry.registered.get(settings["name"])
    if here is not None and here.settings.serialized() == settings:
        return here
    key = json.dumps(dict(settings), sort_keys=True)
    return registry.shared(key, lambda: open_settings(DataSourceSettings.from_serialized(settings)))
