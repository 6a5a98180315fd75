"""The resource manager: one object that knows all of one kind of database, found by entry point.

To bring another database, write a subclass of `ResourceManager` in a package of your own, with one entry point of the
group `txpool.resource_managers`. Nothing in txpool needs a change. What to write depends on the modes that it offers:

    every mode        the class attributes, `make_driver` (a `Driver` with its `Dialect`), `handle`
    xa                `branch` and `branch_recovery`; `phase_two`, where Spark's tasks prepare branches
    cmr               a driver whose `marks` is a `Marks`
    last-resource, local    nothing more

The protocols are in `txpool.resources.base`, `driver`, `dialect` and `marks`. `LocalTransaction`, of
`txpool.resources.local`, is the base of a branch. PostgreSQL and SQLite are written so, each in a folder of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from txpool.errors import NotSupportedError

if TYPE_CHECKING:
    from txpool.characteristics import Characteristics
    from txpool.config.settings import DataSourceSettings
    from txpool.dbapi.connection import PEP249Connection
    from txpool.findings.finding import Finding
    from txpool.resources.base import Branch, BranchRecord, OpenBranch
    from txpool.resources.deadlines import Deadlines
    from txpool.resources.driver import Driver
    from txpool.resources.records import RecordsTable
    from txpool.resources.recovery_access import BranchRecovery, StagingArea
    from txpool.sql.dialects import SqlDialect


class PhaseTwo(Protocol):
    """Ends the branches of one transaction that other processes have prepared in one datasource.

    Used by one thread at a time. Its branches may share one connection, which it opens when the first command is sent.
    """

    def branch(self, record: BranchRecord) -> Branch:
        """A branch that is prepared already, known by its record alone."""


class ResourceManager(ABC):
    """One kind of database. Thread-safe; one instance serves all datasources of its kind, and keeps nothing of any.

    Its module is imported whenever a file names its driver or has its url. So it imports the database's driver inside
    its methods: a configuration can be read, and checked, where that driver is not installed.
    """

    #: The value of `driver` in a datasource's file, and the name of the entry point.
    driver: ClassVar[str]
    #: The database's name for people, in errors and in findings.
    database: ClassVar[str]
    #: The beginnings of its urls, no other resource manager's.
    schemes: ClassVar[tuple[str, ...]]
    #: A whole url, for errors.
    url_example: ClassVar[str]
    #: The values of `mode` that it offers, out of txpool.config.keys.MODES.
    modes: ClassVar[tuple[str, ...]]
    #: True where the url names a file: its path is made absolute. False where it names a server: then it may contain a
    #: password, which is taken out of `settings.url` and is in `settings.password`.
    url_is_path: ClassVar[bool] = False
    #: Whether its branches are named before their first statement, as XA does it, and not at PREPARE. Then `name` is
    #: called when the branch is made, and again with the name that PREPARE would give it: the first one stays.
    names_early: ClassVar[bool] = False
    #: Whether its driver waits in a task's event loop. Else its statements, and the ends of transactions that it takes
    #: part in, block in threads.
    waits_in_loop: ClassVar[bool] = False
    #: Whether its branches can write rows as evidence: `txpool.resources.branch_rows`.
    writes_rows: ClassVar[bool] = False
    #: The argument of `pip install` that installs the driver: `txpool[mariadb]`, or a package.
    requirement: ClassVar[str] = ""
    #: The beginning of SQLAlchemy's url, for create_engine(); empty where SQLAlchemy cannot use its connections.
    sqlalchemy_url: ClassVar[str] = ""
    #: `module:Class` of the TableWrite that write_table() runs; empty where write_table() cannot write into it.
    spark_write: ClassVar[str] = ""
    #: `module:object` of the TableDialect by which Spark's tasks write its tables: write_table(), the format "txpool",
    #: streams; empty where tasks do not.
    spark_tasks: ClassVar[str] = ""
    #: Where they do not, the reason, to follow the datasource's name.
    why_no_tasks: ClassVar[str] = "is in a database that Spark's tasks do not write"
    #: Whether its server holds a limited number of prepared transactions, as `txpool.spark.commit.slots` counts them.
    counts_slots: ClassVar[bool] = False

    #: `module:Class` of the LockHolders, which is made of a datasource's settings and driver; empty where its server
    #: does not show which statement waits for which branch.
    lock_holders: ClassVar[str] = ""

    #: `module:Class` of the LogServer of a decision log in such a database; empty where it cannot hold one.
    log_server: ClassVar[str] = ""
    #: The beginnings of such a log's urls.
    log_schemes: ClassVar[tuple[str, ...]] = ()

    # -- settings and connections -------------------------------------------------------------------------------

    def url_parameters(self) -> Collection[str]:
        """The names that a server's url may have behind its question mark. Any other is refused, and never shown."""
        return ()

    def is_dsn(self, text: str) -> bool:
        """Whether a text that is no url is a connection string in the form of its driver, for connect(). No I/O."""
        return False

    def url_of(self, dsn: str) -> tuple[str, str | None]:
        """The url that says the same as such a connection string but for the password, and the password.

        References in it stay as they are. ConfigurationError, which shows no part of it.
        """
        raise NotImplementedError

    def check(self, settings: DataSourceSettings) -> None:  # noqa: B027 - most have nothing to refuse
        """Refuse settings that this database cannot serve: `raise settings.properties.error(key, problem)`.

        Called whenever a datasource's settings are read, before `mode` is compared with `modes`. No I/O.
        """

    @abstractmethod
    def make_driver(self, settings: DataSourceSettings, *, recovery: bool = False) -> Driver:
        """The driver of one datasource. No I/O: the driver's `connect` does that.

        With `recovery` it connects as recovery.user, where the settings have one: `settings.connect_options(recovery)`.
        """

    @property
    @abstractmethod
    def handle(self) -> type[PEP249Connection]:
        """The class of the connections that users hold.

        A subclass of `Connection` sets `_driver_class`, the class for which its instances pass, and adds methods of the
        driver that PEP 249 does not know. `_CLOSED`, of it and of its cursor's class, is what the driver raises where
        either is closed; it is InterfaceError where it is not set. Methods that the driver does not have, such as
        tpc_*(), callproc() and nextset(), a handle does not have either.
        """

    def is_transient(self, error: BaseException, *, at_its_end: bool) -> bool:
        """Whether the database has rolled back for a reason that may be gone on the next attempt.

        Called for @transactional(attempts=…), with errors of any driver: answer False for another's. `at_its_end` says
        that the error was raised by the transaction's end, and not by a statement.
        """
        return False

    def why_not_begin(self, characteristics: Characteristics) -> str:
        """Why a local transaction cannot begin so; empty where it can. No I/O.

        A manager that answers otherwise than this one has `begin_as`, and its driver begins as its settings say.
        """
        return f"{self.database} cannot begin with {characteristics}" if characteristics.specified else ""

    def begin_as(self, raw: Any, characteristics: Characteristics) -> None:  # noqa: B027 - most begin in one way
        """Let the next local transactions of a raw connection begin so. It is outside a transaction, and was taken.

        Called only where `why_not_begin` is empty. `Driver.is_clean` answers False for it then, and `Driver.reset` lets
        them begin again as the driver's settings say.
        """

    #: How its database reads SQL: what surely ends a transaction there is refused inside one. None if that differs with
    #: the connection, or is not known: then such a statement is sent, and `Driver.ended_by` tells.
    sql: ClassVar[SqlDialect | None] = None

    def sql_of(self, raw: Any) -> SqlDialect | None:
        """As `sql`, of a raw connection, if that is None for all; no I/O."""
        return None

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
        """Ends the branches that a transaction adopts, such as those of Spark's tasks.

        Called once for each transaction and datasource; no I/O before the first command.
        """
        raise self._cannot_prepare("")

    def branch_recovery(self, settings: DataSourceSettings, *, recovery: bool = True) -> BranchRecovery:
        """Recovery's access to prepared branches, as recovery.user where there is one; no I/O before its methods.

        With `recovery` false it is for the transaction's own process, and connects as the datasource's user. It must
        list every branch that a crash can leave, and tell who may have prepared each, where the server knows: recovery
        trusts the owner, and not the xid.
        """
        raise self._cannot_prepare(settings.name)

    def _cannot_prepare(self, datasource: str) -> NotSupportedError:
        where = f"datasource {datasource}: " if datasource else ""
        return NotSupportedError(f"{where}{self.database} cannot prepare. Nothing was done")

    # -- optional parts -----------------------------------------------------------------------------------------

    def connected_by_sqlalchemy(self, connection: PEP249Connection, arguments: Mapping[str, Any]) -> None:  # noqa: B027
        """Set on a connection of an Engine what SQLAlchemy's dialect would have passed to the driver's connect()."""

    @property
    def records(self) -> RecordsTable | None:
        """Its table of records, for work with a transaction_id; None where such work is refused."""
        return None

    def staging(self, settings: DataSourceSettings, *, lock_timeout: float) -> StagingArea | None:
        """Recovery's access to the staging tables of Spark's writes; None where Spark's writes leave none.

        `lock_timeout` is in seconds.
        """
        return None

    def findings(self, settings: DataSourceSettings, *, stale_after: float, timeout: float | None) -> Iterator[Finding]:
        """The findings of `txpool check` about a datasource and its server. The check leaves nothing behind.

        A branch that has been prepared for longer than `stale_after` (seconds) is a finding. `timeout` is
        transaction.timeout in seconds, None where it is not known. It may raise NotConnected, ConfigurationError and
        the database's own errors.
        """
        yield from ()
