"""A database: a resource manager that adds a DB-API driver, the connections that users hold, and a pool of them.

What to write depends on the modes that it offers:

    every mode        the class attributes, `make_driver` (a `Driver` with its `Dialect`), `handle`
    xa                `branch` and `branch_recovery`; `phase_two`, if Spark's tasks prepare branches
    cmr               a driver whose `marks` is a `Marks`
    last-resource, local    nothing more

The protocols are in `txpool.resources.base` and, for a driver, in `txpool.resources.driver`: `driver`, `dialect` and
`marks`. `LocalTransaction`, of `local` there, is the base of a branch. PostgreSQL and SQLite are written so, each in a
folder of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from txpool.errors import translated
from txpool.resources.manager import PhaseTwo, ResourceManager
from txpool.sql.characteristics import UNSPECIFIED

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.dbapi.connection import PEP249Connection
    from txpool.resources.base import BegunBy, MarkedBranch, OpenBranch
    from txpool.resources.deadlines import Deadlines
    from txpool.resources.driver.driver import Driver
    from txpool.sql.characteristics import Characteristics
    from txpool.sql.dialects import SqlDialect


class Database(ResourceManager):
    """One kind of database."""

    #: How its database reads SQL: what surely ends a transaction there is refused inside one. None if that differs with
    #: the connection, or is not known: then such a statement is sent, and `Driver.ended_by` tells.
    sql: ClassVar[SqlDialect | None] = None

    @abstractmethod
    def make_driver(self, settings: DataSourceSettings, *, recovery: bool = False) -> Driver:
        """The driver of one datasource. No I/O: the driver's `connect` does that.

        With `recovery` it connects as recovery.user, if the settings have one: `settings.connect_options(recovery)`.
        """

    @property
    @abstractmethod
    def handle(self) -> type[PEP249Connection]:
        """The class of the connections that users hold.

        A subclass of `Connection` sets `_driver_class`, the class for which its instances pass, and adds methods of the
        driver that PEP 249 does not know. `_CLOSED`, of it and of its cursor's class, is what the driver raises if
        either is closed; it is InterfaceError if it is not set. Methods that the driver does not have, such as
        tpc_*(), callproc() and nextset(), a handle does not have either.
        """

    def sql_of(self, raw: Any) -> SqlDialect | None:
        """As `sql`, of a raw connection, if that is None for all; no I/O."""
        return None

    def begin_as(self, raw: Any, characteristics: Characteristics) -> None:
        """Let the next local transactions of a raw connection begin so. It is outside a transaction, and was taken.

        Called only if `why_not_begin` is empty. `Driver.is_clean` answers False for it then, and `Driver.reset` lets
        them begin again as the driver's settings say.
        """

    def begin(self, source: Any, transaction: BegunBy, timeout: float | None) -> tuple[Any, OpenBranch | MarkedBranch]:
        """A physical connection of the datasource's pool for the whole transaction, and its branch."""
        pooled = source.take(timeout)
        try:
            if transaction.characteristics is not UNSPECIFIED:
                with translated():
                    self.begin_as(pooled.raw, transaction.characteristics.over(source.settings.characteristics))
            return pooled, source.make_branch(pooled.raw, transaction.deadlines)
        except BaseException:
            source.pool.give_back(pooled)
            raise

    # -- mode xa ------------------------------------------------------------------------------------------------

    def branch(self, datasource: str, driver: Driver, raw: Any, deadlines: Deadlines, *, file: str) -> OpenBranch:
        """The branch of a transaction on a raw connection, which the branch owns until it has ended.

        Called when the transaction first uses the datasource; no I/O. `datasource` is the datasource's name, and `file`
        the path of its file, for the branch's `location`. Its PREPARE must be durable, and its yes must be the
        database's own: an answer that is lost is a vote to roll back. Its record says by identity and evidence which
        server prepared it; what it answers of a branch that is gone is in `BranchOutcome`.
        """
        raise self._cannot_prepare(datasource)

    def phase_two(self, driver: Driver, deadlines: Deadlines) -> PhaseTwo:
        """As `adopting`, over the datasource's driver."""
        raise self._cannot_prepare("")

    def adopting(self, source: Any, deadlines: Deadlines) -> PhaseTwo:
        return self.phase_two(source.driver_adapter, deadlines)
