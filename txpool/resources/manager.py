"""What txpool knows of one kind of database: its resource manager, found by entry point.

PostgreSQL and SQLite are written so, each in a folder of its own. Another database is another folder, or another
package, with one entry point of the group `txpool.resource_managers` and no edit elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from txpool.errors import NotSupportedError

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.dbapi.connection import Connection
    from txpool.findings.finding import Finding
    from txpool.resources.base import Branch, BranchRecord, BranchRecovery, OpenBranch, StagingArea
    from txpool.resources.deadlines import Deadlines
    from txpool.resources.driver import Driver
    from txpool.resources.marks import Marks
    from txpool.resources.records import RecordsTable


class PhaseTwo(Protocol):
    """Where one transaction ends the branches that others have prepared in one datasource. Used by one thread."""

    def branch(self, record: BranchRecord) -> Branch:
        """A branch that is prepared already, known by its record alone."""


class ResourceManager(ABC):
    """One kind of database. It keeps nothing of any datasource; thread-safe.

    Its module is imported whenever a file is read: what it needs of the database's driver, it imports in its methods.
    """

    #: What `driver` is in a file; the name of the entry point.
    driver: ClassVar[str]
    #: What people call the database.
    database: ClassVar[str]
    #: How its urls begin, and a whole one as an example.
    schemes: ClassVar[tuple[str, ...]]
    url_example: ClassVar[str]
    #: What `mode` may be, of txpool.config.keys.MODES.
    modes: ClassVar[tuple[str, ...]]
    #: True where the url names a file: its path is made absolute. False for a server's, which may have a password.
    url_is_path: ClassVar[bool] = False
    #: The beginning of SQLAlchemy's url, for create_engine(); empty where SQLAlchemy cannot work over its connections.
    sqlalchemy_url: ClassVar[str] = ""
    #: What `pip install` is to be told where the driver is missing: `txpool[mariadb]`, or a package.
    requirement: ClassVar[str] = ""
    #: `module:Class` of the TableWrite that write_table() runs; empty where write_table() cannot write into it.
    spark_write: ClassVar[str] = ""
    #: Whether Spark's tasks write and read it themselves: the format "txpool", streams, atomicity="partition".
    spark_tasks: ClassVar[bool] = False
    #: Where tasks do not: why, as "is a file with one writer".
    why_no_tasks: ClassVar[str] = "is none that Spark's tasks write"

    # -- settings and connections -------------------------------------------------------------------------------

    def url_parameters(self) -> Collection[str]:
        """What a url of a server may have behind the question mark."""
        return ()

    def check(self, settings: DataSourceSettings) -> None:  # noqa: B027 - most have nothing to refuse
        """Refuse settings that this database cannot serve: `raise settings.properties.error(key, problem)`."""

    @abstractmethod
    def make_driver(self, settings: DataSourceSettings, *, recovery: bool = False) -> Driver:
        """The driver of one datasource; with `recovery` it connects as recovery's own user, where there is one."""

    @property
    @abstractmethod
    def handle(self) -> type[Connection]:
        """The class of the connections that users hold."""

    def is_transient(self, error: BaseException, *, at_its_end: bool) -> bool:
        """Whether the database has rolled back for a reason that may be gone on the next attempt.

        `at_its_end`: the error has come out of the transaction's end, not out of a statement.
        """
        return False

    # -- mode xa ------------------------------------------------------------------------------------------------

    def branch(self, datasource: str, driver: Driver, raw: Any, deadlines: Deadlines, *, file: str) -> OpenBranch:
        """The branch of a transaction on a raw connection; `file` is the datasource's, for its location."""
        raise self._cannot_prepare(datasource)

    def phase_two(self, driver: Driver, deadlines: Deadlines) -> PhaseTwo:
        """What ends the branches that a transaction adopts; it connects when it is needed."""
        raise self._cannot_prepare("")

    def branch_recovery(self, settings: DataSourceSettings, *, recovery: bool = True) -> BranchRecovery:
        """What recovery asks for prepared branches; with `recovery` false as the datasource's own user."""
        raise self._cannot_prepare(settings.name)

    def _cannot_prepare(self, datasource: str) -> NotSupportedError:
        return NotSupportedError(f"datasource {datasource}: {self.database} cannot prepare. Nothing was done")

    # -- what else it has ---------------------------------------------------------------------------------------

    @property
    def marks(self) -> Marks | str:
        """Its ways with a table of marks (mode cmr), or the reason why it can have none, in words."""
        return f"{self.database} has no table of marks"

    @property
    def records(self) -> RecordsTable | None:
        """Its table of records, for work with a transaction_id; None where it keeps none."""
        return None

    def staging(self, settings: DataSourceSettings, *, lock_timeout: float) -> StagingArea | None:
        """Recovery's view of the staging tables of Spark's writes; None where there are none."""
        return None

    def findings(self, settings: DataSourceSettings, *, old: float, timeout: float | None) -> Iterator[Finding]:
        """What `txpool check` says of a datasource; it leaves nothing behind.

        A branch that has been prepared for longer than `old` (seconds) is a finding; `timeout` is
        transaction.timeout, where it is known.
        """
        yield from ()
