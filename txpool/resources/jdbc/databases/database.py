"""What txpool has to know of a database over JDBC: how its branches begin, prepare and end, and who the server is.

A raw connection is an `XaConnection`. Java's calls block: each method here returns once the database has answered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from txpool.resources.base import BranchOutcome, BranchRecord, PrepareVote, Refused
from txpool.resources.branches.phase_two import PhaseTwoReply, PhaseTwoVerb
from txpool.resources.recovery_access import PreparedBranch
from txpool.sql.dialects import OTHER, SqlDialect
from txpool.xid import Xid

if TYPE_CHECKING:
    from txpool.resources.jdbc.marks import JdbcMarks
    from txpool.resources.jdbc.session import XaConnection


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """Who a session's server is."""

    #: The identity of server and database; empty if it is not told.
    identity: str = ""
    #: What changes if it has failed over or was restored; empty if it is not told.
    generation: str = ""
    #: The server's number of the login role; empty if it has none.
    role: str = ""


@dataclass(frozen=True, slots=True)
class PreparedVote:
    """The answer yes to PREPARE, and what its record keeps."""

    vote: PrepareVote = PrepareVote.COMMIT
    evidence: dict[str, str] = field(default_factory=dict)


class JdbcDatabase(ABC):
    """One kind of database. Thread-safe; it keeps nothing of a connection but on that."""

    #: Its name for people.
    name: ClassVar[str]
    #: What java.sql.DatabaseMetaData calls it, in lower case.
    products: ClassVar[tuple[str, ...]] = ()
    #: How it reads SQL text.
    sql: ClassVar[SqlDialect] = OTHER
    #: How its table of marks is written; None if that is not proven.
    marks: ClassVar[JdbcMarks | None] = None
    #: Whether a session that is closed takes what it has prepared along: it stays open until phase two.
    keeps_open: ClassVar[bool] = False
    #: Whether a statement that has failed dooms the branch: else the database itself is asked at PREPARE.
    failures_doom: ClassVar[bool] = True
    #: Whether the driver can give up waiting for its server.
    has_network_timeout: ClassVar[bool] = False
    #: Whether `lock_holders` names the very branch, and not candidates.
    knows_holders: ClassVar[bool] = True
    #: What its SAVEPOINT statements end with.
    savepoint_end: ClassVar[str] = ""

    # -- sessions -----------------------------------------------------------------------------------------------

    @abstractmethod
    def identify(self, raw: XaConnection, *, writes: bool) -> DatabaseIdentity:
        """Who the server is. With `writes`, it may be given an identity. The connection is in autocommit mode."""

    def warn_unproven(self, raw: XaConnection) -> None:
        """Log once what follows from an identity or a generation that this role cannot keep."""

    def why_not_xa(self, raw: XaConnection) -> str:
        """Why no branch can be trusted to this session; empty if it can."""
        return ""

    def role_of(self, raw: XaConnection, user: str) -> str:
        """The server's number of a role; empty if it has none."""
        return ""

    def lock_holders(self, raw: XaConnection, waiting: Sequence[Any]) -> list[list[PreparedBranch]]:
        """For each of these connections, the branches that it waits for, or may; asked over `raw`."""
        return [[] for _ in waiting]

    # -- local transactions -------------------------------------------------------------------------------------

    @abstractmethod
    def begin(self, raw: XaConnection) -> None:
        """Begin a local transaction, so that `require_begun` can tell later whether it is the same one."""

    @abstractmethod
    def require_begun(self, raw: XaConnection) -> None:
        """`Refused` if the transaction that `begin` has begun is not the one that is open now."""

    def begin_again(self, raw: XaConnection) -> None:
        """After `require_begun`, if more statements follow: that may have used up what it looks at."""

    def may_commit(self, raw: XaConnection, statement: str) -> bool:
        """Whether a user's statement may have committed a part of the open transaction, as far as its text shows it."""
        return bool(raw.begun) and is_program(raw, statement)

    def leaves_something(self, statement: str) -> bool:
        """Whether a user's statement may leave something in its session that its first words do not show."""
        return False

    def commands_branch(self, statement: str) -> bool:
        """Whether a user's statement would end or begin a branch by its name."""
        return False

    def rows_stay(self, raw: XaConnection) -> bool:
        """Whether the rollback that was just done has left rows in tables without transactions."""
        return False

    def make_durable(self, raw: XaConnection) -> None:
        """Make durable what a COMMIT on this connection, or the end of a branch, has just answered."""

    # -- branches -----------------------------------------------------------------------------------------------

    @abstractmethod
    def start(self, raw: XaConnection, xid: Xid) -> None:
        """Begin the branch, before its first statement. The driver's error."""

    @abstractmethod
    def prepare(self, raw: XaConnection, xid: Xid) -> PreparedVote:
        """End and prepare the branch. `Refused` if nothing is prepared, nor ever will be; else nobody knows."""

    @abstractmethod
    def leave(self, raw: XaConnection, xid: Xid) -> None:
        """Roll back a branch that is not prepared, and leave it. The driver's error."""

    @abstractmethod
    def commit_one_phase(self, raw: XaConnection, xid: Xid) -> None:
        """Commit a branch that is not prepared. `Refused` is definite, any other error leaves it unknown."""

    @abstractmethod
    def finish(self, raw: XaConnection, record: BranchRecord, verb: PhaseTwoVerb, *, own: bool) -> PhaseTwoReply:
        """Commit or roll back a prepared branch; `own` if this session has prepared it. Errors: no reply."""

    def forget(self, raw: XaConnection, xid: Xid) -> None:
        """Let the database forget a branch that it had ended by itself. The driver's error."""

    @abstractmethod
    def listed(self, raw: XaConnection) -> list[PreparedBranch]:
        """The prepared branches of txpool's form, each once. The driver's error if not all can be listed."""

    def names(self, raw: XaConnection) -> set[str]:
        """The names of all that is prepared, other products' too, if a session must stay open for it."""
        return {each.xid.joined for each in self.listed(raw)}

    def before_finishing(self, raw: XaConnection) -> None:
        """Prepare a session of recovery's for `finish`."""

    def status_of(self, raw: XaConnection, record: BranchRecord) -> BranchOutcome | None:
        """How the server shows that a branch has ended; None if it does not."""
        return None

    def is_same_generation(self, raw: XaConnection, record: BranchRecord) -> bool:
        """Whether the server is provably the one that prepared the branch, whose identity is the same."""
        return bool(record.evidence.get(GENERATION)) and self.has_generation(raw, record.evidence[GENERATION])

    def has_generation(self, raw: XaConnection, generation: str) -> bool:
        """Whether the server still knows this generation."""
        return False

    def add_generation(self, raw: XaConnection) -> str:
        """Add a generation of this process's own, in autocommit mode; empty if that is not possible."""
        return ""

    def wrote_nothing(self, record: BranchRecord) -> bool:
        """Whether the record shows that the branch wrote nothing, so that its end changes nothing."""
        return False

    def after_finishing(self, raw: XaConnection) -> None:
        """Called on the session that has prepared a branch, once that has ended."""


#: The evidence that a record has of its server's generation.
GENERATION = "generation"
_PROGRAMS: Final = frozenset({"commit", "end", "call", "execute", "exec", "begin", "declare"})


def is_program(raw: XaConnection, statement: str) -> bool:
    """Whether a statement is a COMMIT, or a program of the database's, whose statements are not in sight."""
    return raw.words_of(statement)[0] in _PROGRAMS


class EndedUnseen(Refused):
    """The transaction that is open is not the one that was begun, and nobody has seen the end of that."""

    def __init__(self) -> None:
        super().__init__(
            "the transaction has ended before it: by a COMMIT, a ROLLBACK or DDL of the program's own, maybe in a "
            "stored procedure, and what was done before that may be committed"
        )
