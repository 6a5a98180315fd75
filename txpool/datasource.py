"""DataSource: a named, configured database, its pool, and its part in transactions; and the registry of names."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from sys import modules
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, ref

from txpool.config.secrets import redact_url
from txpool.config.settings import DataSourceSettings
from txpool.dbapi.connection import Connection
from txpool.dbapi.enlistment import Enlistment
from txpool.errors import ConfigurationError
from txpool.finishing import LIMIT, finish
from txpool.jobs.properties import publish
from txpool.pool import Pool, PoolStatistics
from txpool.pool.pooled import Pooled
from txpool.resource_managers import find as find_resource_manager
from txpool.resources.base import (
    Branch,
    BranchRecord,
    BranchRecovery,
    MarkedBranch,
    OpenBranch,
    PrepareLocation,
    Role,
    StagingArea,
    XidsTable,
)
from txpool.resources.cleanup import CleanupQueue
from txpool.resources.deadlines import NO_DEADLINES, Deadlines
from txpool.resources.drivers import make_driver
from txpool.resources.local import LocalBranch
from txpool.resources.manager import PhaseTwo
from txpool.resources.marked import MarkedTransaction
from txpool.resources.xids import Xids
from txpool.tm.manager import ambient
from txpool.tm.required import Required

if TYPE_CHECKING:
    from txpool.tm.transaction import Transaction

_SCHEME = "txpool:"


class DataSource:
    """A named database. Thread-safe; opens connections when they are needed, and keeps them in its pool.

    Options are the keys of a .properties file with underscores: `pool_max_size=5`, `managed_commit="join"`; what
    begins with `driver_` goes to the driver's connect. It may be pickled, as its settings with references
    unresolved, and is then one and the same in each process that it reaches.
    """

    def __init__(self, name: str | None = None, **options: Any) -> None:
        self._open(DataSourceSettings.load(name=name, **options))

    def _open(self, settings: DataSourceSettings) -> None:
        self.settings = settings
        self.name = settings.name
        #: How it takes part in transactions: xa, cmr, last-resource or local.
        self.mode = settings.mode
        self.role = Role(settings.mode)
        self.driver = settings.driver
        #: What txpool knows of its kind of database.
        self.resource_manager = find_resource_manager(settings.driver)
        #: Without a password.
        self.url = settings.url
        self.driver_adapter = make_driver(settings)
        self.pool: Pool[Any] = Pool(
            self.driver_adapter,
            name=settings.name,
            min_size=settings.pool_min_size,
            max_size=settings.pool_max_size,
            max_wait=settings.pool_max_wait,
            idle_timeout=settings.pool_idle_timeout or 0.0,
            max_lifetime=settings.pool_max_lifetime or 0.0,
            check_bypass=settings.pool_check_bypass,
            check_timeout=settings.pool_check_timeout,
            leak_threshold=settings.pool_leak_threshold,
            reset_always=settings.pool_reset == "always",
        )
        demands = settings.transaction_required
        #: What it demands of statements on plain connections, if anything.
        self.required = None
        if demands != "off" or "pyspark" in modules:
            self.required = Required(settings.name, demands)
        self._handle = self.resource_manager.handle
        #: Its finished marks, where it has marks at all.
        self._cleanup: CleanupQueue | None = None
        if self.role is Role.MARKED:
            self._xids = Xids(settings.name, self.driver_adapter, settings.cmr_table)
            self._cleanup = CleanupQueue(
                self._xids, batch_size=settings.cmr_batch_size, immediate=settings.cmr_immediate_cleanup
            )
        #: One for each transaction whose prepared branches are finished here.
        self._phase_two: WeakValueDictionary[str, PhaseTwo] = WeakValueDictionary()
        key = id(self)
        _opened[key] = ref(self, lambda _: _opened.pop(key, None))

    @classmethod
    def from_settings(cls, settings: DataSourceSettings) -> DataSource:
        """A datasource of its own, whatever exists by that name."""
        datasource = cls.__new__(cls)
        datasource._open(settings)
        return datasource

    @classmethod
    def from_properties(cls, path: str | Path) -> DataSource:
        """The datasource that a file describes: the same one each time, until it is closed. ConfigurationError."""
        return _shared(os.path.abspath(path), lambda: DataSourceSettings.load(path))

    def connect(self, timeout: float | None = None) -> Connection:
        """A connection: inside a transaction part of that, else a plain one.

        `timeout` is how many seconds to wait for one, default pool.max-wait. Errors: PoolTimeout, PoolClosed, the
        driver's own where it cannot connect; ProgrammingError where the transaction cannot take it.
        """
        transaction = ambient()
        if transaction is None:
            if self.required is not None:
                self.required.check_connecting()
            return self._handle(self, self._take(timeout), None)
        return self._handle(self, None, transaction.enlist(self, timeout))

    def close(self) -> None:
        """Close the pool: what is idle now, what is in use when it comes back. Marks that are done with are deleted.

        Where they cannot be, within a few seconds, the log says so, and they are left to recovery.
        """
        _unregister(self)
        _opened.pop(id(self), None)
        try:
            if self._cleanup:
                finish([self._cleanup.pending_work()], monotonic() + LIMIT)
        finally:
            self.pool.close()

    def statistics(self) -> PoolStatistics:
        """The pool's numbers of this moment, and its totals."""
        return self.pool.statistics()

    def __enter__(self) -> DataSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<DataSource {self.name}: {self.driver}, {self.mode}, {self.settings.url}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if "pyspark" in modules:  # it may be on its way to a job
            publish(ambient())
        return deserialized, (self.settings.serialized(),)

    # -- for transactions and recovery --------------------------------------------------------------------------

    def open_enlistment(self, transaction: Transaction, timeout: float | None = None) -> Enlistment:
        """Take a physical connection for the whole transaction, and make its branch."""
        if "pyspark" in modules:  # a session may have been created within it
            publish(ambient())
        pooled = self._take(timeout)
        try:
            return Enlistment(self, transaction, pooled, self._branch(pooled.raw, transaction.deadlines))
        except BaseException:
            self.pool.give_back(pooled)
            raise

    def _take(self, timeout: float | None) -> Pooled[Any]:
        try:
            return self.pool.take(timeout)
        except self.driver_adapter.module.Error as error:
            # A driver's own words name neither the datasource nor, in SQLite, the file.
            error.args = (f"datasource {self.name} ({self.url}): {error}", *error.args[1:])
            raise

    def _branch(self, raw: Any, deadlines: Deadlines) -> OpenBranch | MarkedBranch:
        if self.role is Role.PREPARED:
            file = self.settings.file
            return self.resource_manager.branch(self.name, self.driver_adapter, raw, deadlines, file=file)
        if self._cleanup is not None:
            return MarkedTransaction(
                self.name, self.driver_adapter, raw, self._xids, self._cleanup, deadlines=deadlines
            )
        return LocalBranch(self.name, self.driver_adapter, raw, deadlines, role=self.role)

    def prepared_branch(self, record: BranchRecord, deadlines: Deadlines = NO_DEADLINES) -> Branch:
        """A branch that somebody else has prepared in this database, for the transaction that decides it."""
        gtrid = record.xid.gtrid
        phase_two = self._phase_two.get(gtrid)
        if phase_two is None:
            phase_two = self._phase_two[gtrid] = self.resource_manager.phase_two(self.driver_adapter, deadlines)
        return phase_two.branch(record)

    def branch_recovery(self, *, recovery: bool = True) -> BranchRecovery:
        """What recovery needs of a datasource that prepares; connects as recovery's own user, if there is one.

        With `recovery` false it is for the transaction's own process, and connects as its user.
        """
        if self.role is not Role.PREPARED:
            raise ConfigurationError(f"datasource {self.name} (mode={self.mode}) prepares nothing: only mode=xa does")
        return self.resource_manager.branch_recovery(self.settings, recovery=recovery)

    def xids_table(self, *, nodes: Collection[str] | None = None, lock_timeout: float = 5.0) -> XidsTable:
        """What recovery needs of a marked datasource; its arguments are those of `Xids`."""
        if self.role is not Role.MARKED:
            raise ConfigurationError(f"datasource {self.name} (mode={self.mode}) has no marks: only mode=cmr has")
        driver = make_driver(self.settings, recovery=True)
        return Xids(self.name, driver, self.settings.cmr_table, nodes=nodes, lock_timeout=lock_timeout)

    def prepare_location(self, timeout: float | None = None) -> PrepareLocation:
        """Where it prepares, and as whom. Errors: as `connect`."""
        pooled = self._take(timeout)
        try:
            return PrepareLocation(self.name, pooled.raw.identity, pooled.raw.role, self.settings.file)
        finally:
            self.pool.give_back(pooled)

    def staging(self, *, lock_timeout: float = 5.0) -> StagingArea | None:
        """What recovery needs of the staging tables of Spark's writes; None where there are none of this kind."""
        return self.resource_manager.staging(self.settings, lock_timeout=lock_timeout)


# -- the registry -------------------------------------------------------------------------------------------------

# Each step is one operation of a dict, which needs no lock, and so none that a fork could leave held.
_opened: dict[int, ref[DataSource]] = {}
_registered: dict[str, DataSource] = {}
#: By the absolute path of the file, or by what has travelled here.
_by_key: dict[str, DataSource] = {}
#: Where else relative paths start from: in a Spark task, the driver's working directory.
_search_folders: list[str] = []


def register(datasource: DataSource) -> DataSource:
    """Let connect() find it by its name; returns it. ConfigurationError where another has that name."""
    other = _registered.setdefault(datasource.name, datasource)
    if other is not datasource:
        raise ConfigurationError(f"another datasource is registered as {datasource.name}: {other!r}. Close it first.")
    return datasource


def find(target: str | Path | DataSource) -> DataSource:
    """A datasource itself, or the one of a registered name or a file, also as `txpool:name`. ConfigurationError."""
    if isinstance(target, DataSource):
        return target
    name = str(target).removeprefix(_SCHEME)
    datasource = _registered.get(name)
    if datasource is not None:
        return datasource
    for folder in ("", *_search_folders):
        path = os.path.join(folder, name)
        if os.path.abspath(path) in _by_key or os.path.exists(path):
            return DataSource.from_properties(path)
    names = ", ".join(sorted(_registered)) or "none"
    raise ConfigurationError(
        f"{redact_url(name)!r} is neither a registered datasource (these are: {names}) nor a file: "
        "register(datasource), or name its .properties file"
    )


def connect(target: str | Path | DataSource, timeout: float | None = None) -> Connection:
    """A connection to a datasource, a registered name, or a file's datasource; as `DataSource.connect`."""
    return find(target).connect(timeout)


def _shared(key: str, load: Any) -> DataSource:
    datasource = _by_key.get(key)
    if datasource is None:
        made = DataSource.from_settings(load())
        datasource = _by_key.setdefault(key, made)
        if datasource is not made:
            made.pool.close()
    return datasource


def opened() -> list[DataSource]:
    """The datasources that this process has opened and not closed, whatever they are known by."""
    return [datasource for each in list(_opened.values()) if (datasource := each()) is not None]


def known() -> dict[str, DataSource]:
    """What find() knows without a file: registered names, and the absolute paths of files that are open."""
    opened = {key if os.path.isabs(key) else it.name: it for key, it in list(_by_key.items())}
    return opened | _registered


def install_received(datasources: Mapping[str, DataSource], folder: str) -> None:
    """Let find() know datasources that have arrived here, by the names and paths they have where they come from.

    A relative path that leads nowhere here starts from `folder` then.
    """
    for key, datasource in datasources.items():
        (_by_key if os.path.isabs(key) else _registered)[key] = datasource
    _search_folders[:] = [folder]


def deserialized(travelled: Mapping[str, Any]) -> DataSource:
    """A datasource that has travelled, in this process: one and the same each time."""
    registered = _registered.get(travelled["name"])
    if registered is not None and registered.settings.serialized() == travelled:
        return registered
    return _shared(json.dumps(dict(travelled), sort_keys=True), lambda: DataSourceSettings.from_serialized(travelled))


def _unregister(datasource: DataSource) -> None:
    for known in (_registered, _by_key):
        for key, other in list(known.items()):
            if other is datasource:
                known.pop(key, None)
