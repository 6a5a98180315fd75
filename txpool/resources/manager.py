"""The resource manager: one object that knows all of one kind of what takes part, found by entry point.

To bring another, write a subclass of `ResourceManager` in a package of your own, with one entry point of the group
`txpool.resource_managers`; of `Database`, in `txpool.resources.database`, if it has a DB-API driver. Nothing in txpool
needs a change. The protocol is small:

    begin               the work of a transaction, and its branch: that prepares, commits, rolls back and forgets, and
                        has a location and the evidence of its end (`txpool.resources.base`)
    branch_recovery     recovery's access: identity, what is prepared and whose it is, commit, rollback
                        (`txpool.resources.recovery_access`)

All else has a default, or is a part that may be None (`txpool.resources.parts`).
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from txpool.errors import NotSupportedError
from txpool.resources.blocking import OneByOne

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.findings.finding import Finding
    from txpool.resources.base import BegunBy, Branch, BranchRecord
    from txpool.resources.deadlines import Deadlines
    from txpool.resources.parts import DsnPart, LogPart, SparkPart, SQLAlchemyPart
    from txpool.resources.records import RecordsTable
    from txpool.resources.recovery_access import BranchRecovery, StagingArea
    from txpool.sql.characteristics import Characteristics


class PhaseTwo(Protocol):
    """Ends the branches of one transaction that other processes have prepared in one datasource.

    Used by one thread at a time. Its branches may share connections, which it opens when commands are sent.
    """

    def branch(self, record: BranchRecord) -> Branch:
        """A branch that is prepared already, known by its record alone."""


class ResourceManager(ABC):
    """One kind of what takes part. Thread-safe; one instance serves all datasources of its kind, and keeps nothing.

    Its module is imported whenever a file names its driver or has its url. So it imports what it needs inside its
    methods: a configuration can be read, and checked, if that is not installed.
    """

    #: The value of `driver` in a datasource's file, and the name of the entry point.
    driver: str
    #: Its name for people, in errors and in findings.
    database: str
    #: How its urls begin. No other resource manager has these.
    schemes: tuple[str, ...]
    #: A whole url, for errors.
    url_example: str
    #: The values of `mode` that it offers, out of txpool.config.keys.MODES.
    modes: tuple[str, ...] = ("xa",)
    #: True if the url names a file: its path is made absolute. False if it names a server: then it may contain a
    #: password, which is taken out of `settings.url` and is in `settings.password`.
    url_is_path: bool = False
    #: Whether its driver waits in a task's event loop. Else its statements, and the ends of transactions that it takes
    #: part in, block in threads.
    waits_in_loop: bool = False
    #: Whether its branches can write rows as evidence: `txpool.resources.marked.branch_rows`.
    writes_rows: bool = False
    #: Whether its branches are named before their first work, as XA does it, and not at PREPARE. Then `name` is
    #: called when the branch is made, and again with the name that PREPARE would give it: the first one stays.
    names_early: bool = False
    #: After how many seconds, at the earliest, other programs may take files of what is in doubt for orphans and remove
    #: them; None if there is no such program.
    orphaned_after: float | None = None
    #: Whether `txpool.folder()` publishes there: its work has `folder`.
    publishes_folders: bool = False
    #: What follows "datasource NAME has no connections: " if somebody wants one, if it is no `Database`.
    instead_of_connecting: str = "it is no database"
    #: The argument of `pip install` that installs what it needs: `txpool[mariadb]`, or a package.
    requirement: str = ""

    #: Connection strings that are no urls.
    dsn: DsnPart | None = None
    #: The decision log in it.
    log: LogPart | None = None
    #: Writes of Spark's.
    spark: SparkPart | None = None
    #: Engines over its connections.
    sqlalchemy: SQLAlchemyPart | None = None
    #: `module:Class` of the LockHolders, which is made of a datasource's settings and driver; None if its server
    #: does not show which statement waits for which branch.
    lock_holders: str | None = None
    #: `module:Class` of the OutboxTable; None if it has no outbox.
    outbox: str | None = None
    #: `module:Class` of the MessageTables; None if it has no queues, and no positions of consumers.
    messages: str | None = None
    #: `module:Class` of the LakeTables; None if it cannot have the catalog of a lake.
    lake: str | None = None
    #: `module:Class` of the session that sends and receives messages; None if it has no messages.
    session: str | None = None

    @property
    def records(self) -> RecordsTable | None:
        """Its table of records, for work with a transaction_id; None if such work is refused."""
        return None

    # -- settings -----------------------------------------------------------------------------------------------

    def url_parameters(self) -> Collection[str]:
        """The names that a server's url may have behind its question mark. Any other is refused, and never shown."""
        return ()

    def check(self, settings: DataSourceSettings) -> None:  # noqa: B027 - most have nothing to refuse
        """Refuse settings that cannot be served: `raise settings.properties.error(key, problem)`.

        Called whenever a datasource's settings are read, before `mode` is compared with `modes`. No I/O.
        """

    def why_not_begin(self, characteristics: Characteristics) -> str:
        """Why a local transaction cannot begin so; empty if it can. No I/O.

        A `Database` that answers otherwise than this has `begin_as`, and its driver begins as its settings say.
        """
        return f"{self.database} cannot begin with {characteristics}" if characteristics.specified else ""

    # -- the protocol -------------------------------------------------------------------------------------------

    def begin(self, source: Any, transaction: BegunBy, timeout: float | None) -> tuple[Any, Any]:
        """What a transaction works with in this datasource, and its branch there, an `OpenBranch`.

        Called once for each transaction, when it first uses the datasource. The work has `rollback()`, for a
        transaction that has ended meanwhile, and gets the transaction, by a weak reference, as its `owner`. The
        branch has `needs_decision`, if it has no `commit_one_phase`.
        """
        raise NotSupportedError(f"datasource {source.name}: {self.database} does not take part by itself")

    def branch_recovery(self, settings: DataSourceSettings, *, recovery: bool = True) -> BranchRecovery:
        """Recovery's access to prepared branches, as recovery.user if there is one; no I/O before its methods.

        With `recovery` false it is for the transaction's own process, and connects as the datasource's user. It must
        list every branch that a crash can leave, and tell who may have prepared each, if the server knows: recovery
        trusts the owner, and not the xid.
        """
        raise self._cannot_prepare(settings.name)

    def adopting(self, source: Any, deadlines: Deadlines) -> PhaseTwo:
        """Ends the branches that a transaction adopts, such as those of Spark's tasks.

        Called once for each transaction and datasource; no I/O before the first command.
        """
        return OneByOne(self.branch_recovery(source.settings, recovery=False))

    def _cannot_prepare(self, datasource: str) -> NotSupportedError:
        where = f"datasource {datasource}: " if datasource else ""
        return NotSupportedError(f"{where}{self.database} cannot prepare. Nothing was done")

    # -- what has a default -------------------------------------------------------------------------------------

    def is_transient(self, error: BaseException, *, at_its_end: bool) -> bool:
        """Whether it has rolled back for a reason that may be gone on the next attempt.

        Called for @transactional(attempts=…), with errors of any driver: answer False for another's. `at_its_end` says
        that the error was raised by the transaction's end, and not by a statement.
        """
        return False

    def is_outage(self, error: BaseException) -> bool:
        """Whether the database is the reason, and not what was asked of it.

        It cannot be reached, has no room, or takes no writes now. Called with errors of any driver: answer False for
        another's.
        """
        return False

    def staging(self, settings: DataSourceSettings, *, lock_timeout: float) -> StagingArea | None:
        """Recovery's access to what Spark's writes have staged; None if Spark's writes leave nothing.

        `lock_timeout` is in seconds.
        """
        return None

    def before_job(self, source: Any, transaction: Any) -> None:  # noqa: B027 - most need nothing
        """Refuse a Spark job whose tasks prepare there within this transaction, or limit how long it may take.

        Called on the driver for what is no `Database`, before the job.
        """

    def ends_after(self, settings: DataSourceSettings) -> float | None:
        """After how many seconds its server ends a prepared branch by itself; None if it never does."""
        return None

    def workload(self, source: Any) -> Any:
        """What the conformance kit writes and reads there, of what is no `Database`; None if nobody has said that.

        It is a `txpool.conformance.workload.Workload`.
        """
        return None

    def findings(self, settings: DataSourceSettings, *, stale_after: float, timeout: float | None) -> Iterator[Finding]:
        """The findings of `txpool check` about a datasource and its server. The check leaves nothing behind.

        A branch that has been prepared for longer than `stale_after` (seconds) is a finding. `timeout` is
        transaction.timeout in seconds, None if it is not known. It may raise NotConnected, ConfigurationError and
        the database's own errors.
        """
        yield from ()
