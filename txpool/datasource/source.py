"""Source: what a file describes and what takes part in transactions, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

from txpool.config.settings import DataSourceSettings
from txpool.datasource import registry
from txpool.errors import ConfigurationError
from txpool.jobs import spark
from txpool.jobs.properties import publish
from txpool.resource_managers import find_resource_manager
from txpool.resources.base import BegunBy, Branch, BranchRecord, PrepareLocation, Role
from txpool.resources.deadlines import NO_DEADLINES, Deadlines
from txpool.resources.manager import PhaseTwo, ResourceManager
from txpool.resources.marked.branch_rows import BranchRows
from txpool.resources.recovery_access import BranchRecovery, StagingArea, XidsTable
from txpool.sql.characteristics import Characteristics
from txpool.tm.ambient import ambient
from txpool.tm.enlistment import Part

T = TypeVar("T")


class Source:
    """A named place of work, as its settings describe it: a queue, a table of a lake, a folder. Thread-safe.

    A database is a `DataSource`, which adds connections. A source may be pickled: its settings are, with references
    unresolved. All copies that are unpickled in one process are the same object.
    """

    #: The class of its part in a transaction, for the transaction manager.
    enlistment_class: Any = Part

    def __init__(self, settings: DataSourceSettings) -> None:
        self.settings = settings
        self.name = settings.name  #: By which transactions, recovery and messages know it.
        #: The mode: xa, cmr, last-resource or local.
        self.mode = settings.mode
        #: The role of its branches, which follows from the mode.
        self.role = Role(settings.mode)
        self.driver = settings.driver  #: The driver's name, as in the file.
        self.resource_manager = cast("ResourceManager", find_resource_manager(settings.driver))
        #: Whether its branches have names before their first work.
        self.names_early = self.role is Role.PREPARED and self.resource_manager.names_early
        #: The url, without a password.
        self.url = settings.url
        #: What it calls when it is closed.
        self.when_closed = ExitStack()
        self._kept: dict[str, Any] = {}
        #: By gtrid: phase two of the prepared branches that a transaction has adopted.
        self._phase_two: WeakValueDictionary[str, PhaseTwo] = WeakValueDictionary()

    def close(self) -> None:
        """Nobody finds it any more."""
        registry.unregister(self)
        self.when_closed.close()

    def kept(self, name: str, make: Callable[[], T], close: Callable[[T], object] = lambda _: None) -> T:
        """What is made of it under a name: the same object each time, until it is closed, and that with it."""

        def leave() -> None:
            self._kept.pop(name, None)  # first: nobody is to find what is closed
            close(made)

        found: T | None = self._kept.get(name)
        if found is None:
            made = make()
            found = self._kept.setdefault(name, made)
            if found is made:
                self.when_closed.callback(leave)
            else:  # another thread was faster
                close(made)
        return found

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.driver}, {self.mode}, {self.settings.url}>"

    def __reduce__(self) -> tuple[Any, ...]:
        from txpool.datasource.datasource import open_serialized

        if spark.is_loaded():  # the pickle may be for a Spark job
            publish(ambient())
        return open_serialized, (self.settings.serialized(),)

    # -- for transactions and recovery --------------------------------------------------------------------------

    def why_not_begin(self, characteristics: Characteristics) -> str:
        """Why it cannot begin so; empty if it can."""
        return self.resource_manager.why_not_begin(characteristics)

    def begin(self, transaction: BegunBy, timeout: float | None) -> tuple[Any, Any]:
        """The work of a transaction here, and its branch."""
        return self.resource_manager.begin(self, transaction, timeout)

    def prepared_branch(self, record: BranchRecord, deadlines: Deadlines = NO_DEADLINES) -> Branch:
        """A branch that another process has prepared here, for the transaction that adopts it."""
        gtrid = record.xid.gtrid
        phase_two = self._phase_two.get(gtrid)
        if phase_two is None:
            phase_two = self._phase_two[gtrid] = self.resource_manager.adopting(self, deadlines)
        return phase_two.branch(record)

    def prepare_location(self, timeout: float | None = None) -> PrepareLocation:
        """Where it prepares, for the log; `timeout` is how many seconds to wait for a connection, if it has some.

        Errors: the server's own.
        """
        return PrepareLocation(self.name, self.branch_recovery(recovery=False).identity(), "", self.settings.file)

    def branch_recovery(self, *, recovery: bool = True) -> BranchRecovery:
        """Access to the prepared branches, of mode xa; connects as recovery.user, if there is one.

        With `recovery` false it is for the transaction's own process, and connects as the datasource's user.
        ConfigurationError in another mode.
        """
        if self.role is not Role.PREPARED:
            raise ConfigurationError(f"datasource {self.name} (mode={self.mode}) prepares nothing: only mode=xa does")
        return self.resource_manager.branch_recovery(self.settings, recovery=recovery)

    def xids_table(self, *, nodes: Collection[str] | None = None, lock_timeout: float = 5.0) -> XidsTable:
        """Recovery's access to the table of marks, of mode cmr; the arguments are those of `Xids`.

        ConfigurationError in another mode.
        """
        raise ConfigurationError(f"datasource {self.name} (mode={self.mode}) has no marks: only mode=cmr has")

    def branch_rows(self, *, nodes: Collection[str], lock_timeout: float = 5.0) -> BranchRows | None:
        """Recovery's access to the rows of its branches; None unless xa.evidence = row."""
        return None

    def staging(self, *, lock_timeout: float = 5.0) -> StagingArea | None:
        """Recovery's access to what Spark's writes have staged; None if they leave nothing here."""
        return self.resource_manager.staging(self.settings, lock_timeout=lock_timeout)
