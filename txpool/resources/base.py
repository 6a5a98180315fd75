"""The protocols between a database and the coordinator: branches, votes, outcomes, decisions.

Prepare and commit are split-phase: the coordinator starts every branch, then awaits every branch, so that databases
work at the same time without a thread pool. A branch whose driver can only block does its work in the start.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _quoted  # a text as json writes it
from sys import intern
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from txpool.xid import Xid

if TYPE_CHECKING:
    from txpool.resources.deadlines import Deadlines
    from txpool.sql.characteristics import Characteristics


class Role(Enum):
    """The part that a branch plays in its transaction; the value is the datasource's `mode`."""

    PREPARED = "xa"  #: the branch prepares; the log or a marked branch decides
    MARKED = "cmr"  #: the branch's local commit, with its row, is the decision
    LAST = "last-resource"  #: the branch commits once all others have prepared, and leaves no mark
    ALONE = "local"  #: the branch must be the only one of its transaction


# Names of their own: they are asked for each branch, and Python 3.11 calls a function for each `Role.PREPARED`.
PREPARED, MARKED, LAST = Role.PREPARED, Role.MARKED, Role.LAST


class PrepareVote(Enum):
    """A branch's answer to PREPARE; an exception is the vote to roll back."""

    COMMIT = "commit"
    READ_ONLY = "read-only"  #: the branch has changed nothing, and takes no part in phase two


class BranchOutcome(Enum):
    """How a branch ended, as the database says.

    A branch that is not prepared any more is COMMITTED or ROLLED_BACK if the database shows how it ended. If
    nothing shows it, the resource manager answers ABSENT or LOST. It may conclude one thing of a branch whose PREPARE
    was answered: if the answer to its own command was lost, and the next try finds the branch ABSENT, the first try
    has ended it: COMMITTED after COMMIT, ROLLED_BACK after ROLLBACK.
    """

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    #: The database gave no final answer, or the datasource leads to another database: recovery asks again.
    UNKNOWN = "unknown"
    #: Three things are certain. The branch is not prepared any more: a listing taken after the command's answer lacks
    #: it, or the answer itself says so. Nothing shows how it ended. The server is the one that prepared it: the
    #: record's identity, and the server's generation in its evidence, are not empty, and were read again and are the
    #: same. To the coordinator that is a hazard, unless recovery has fenced its process. To recovery the branch has
    #: ended as decided.
    ABSENT = "absent"
    #: To a COMMIT only: the branch is not prepared any more, and the row that it has written before its PREPARE is not
    #: there (`txpool.resources.marked.branch_rows`). So it has rolled back, unless its decision was forgotten since.
    NO_ROW = "no row"
    #: The branch is not prepared any more, nothing shows how it ended, and the server is not provably the one that
    #: prepared it: it has failed over, or was restored, or did not tell who it is. To everybody that is a hazard.
    #: Of a branch that was not prepared: a part of it is committed, or may be.
    LOST = "lost"


_NO_EVIDENCE: Mapping[str, str] = {}


class BranchRecord(NamedTuple):
    """The record of a branch in a decision: enough to commit the branch later, from another process."""

    xid: Xid
    datasource: str
    #: The database's identity: if the url leads to another database now, "absent" means nothing. If it is empty,
    #: nothing is ever proven of a branch that is gone.
    identity: str = ""
    #: Whatever the resource manager needs to tell how a branch ended that is gone (PostgreSQL: its transaction id), and
    #: the server's generation: what changes if it fails over or is restored (PostgreSQL: its timeline).
    evidence: Mapping[str, str] = _NO_EVIDENCE


def encode(branches: Iterable[BranchRecord]) -> str:
    """The branches of a decision as JSON. The log and the table of marks keep the number of this format."""
    parts: list[str] = []
    for xid, datasource, identity, evidence in branches:
        parts.append(_place(xid.bqual, datasource, identity))
        comma = ""
        for name, fact in evidence.items():
            parts += (comma, _quoted(name), ":", _quoted(fact))
            comma = ","
        parts.append("}]")
    return f"[{''.join(parts)[1:]}]"


@lru_cache(maxsize=1024)
def _place(bqual: str, datasource: str, identity: str) -> str:
    """What records in the same place of other transactions have in common: all that stands before the evidence."""
    return f",[{_quoted(bqual)},{_quoted(datasource)},{_quoted(identity)},{{"


def decode(gtrid: str, text: str) -> tuple[BranchRecord, ...]:
    """The branches that `encode` wrote. ValueError if the text is damaged, or written by a later version.

    Recovery reads very many, and what they have in common is kept once.
    """
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            return tuple(
                BranchRecord(
                    Xid(gtrid, intern(bqual)),
                    intern(datasource),
                    intern(identity),
                    {intern(name): fact for name, fact in {**evidence}.items()},
                )
                for bqual, datasource, identity, evidence in found
            )
    except (TypeError, ValueError) as error:
        raise ValueError(f"the record of {gtrid} is damaged: {error}") from error
    raise ValueError(f"the record of {gtrid} has format {found.get('format')}, which is a later txpool's: use that one")


def encode_last(datasource: str) -> str:
    """What stands in the place of the branches if no decision was made yet, and a last resource commits before it.

    Former versions take it for a decision of a later version, and leave it alone.
    """
    return json.dumps({"format": "2", "last": datasource})


def decode_last(text: str) -> str | None:
    """The datasource that `encode_last` was given; None for any other text."""
    if not text.startswith("{"):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    known = found.keys() == {"format", "last"} and found["format"] == "2"
    return str(found["last"]) if known else None


#: A database's identity, and the role that a session logged in there as.
LocationKey = tuple[str, str]


class PrepareLocation(NamedTuple):
    """The database in which a branch prepares, and the login role. Recovery must reach both. Holds no secret."""

    datasource: str
    #: The database's identity; empty if the server does not tell it.
    identity: str = ""
    #: The server's number (PostgreSQL: oid) of the role that the session logged in as; empty if it has none.
    role: str = ""
    #: The path of the datasource's file; empty if the datasource was configured in code.
    path: str = ""
    #: How it is reached if it was configured in code (`txpool.config.logins`); empty if nothing tells that.
    login: str = ""

    @property
    def key(self) -> LocationKey:
        return self.identity, self.role


class BegunBy(Protocol):
    """A transaction that begins, as a resource manager sees it."""

    gtrid: str
    characteristics: Characteristics
    deadlines: Deadlines


class ReadOnlyCheck(Protocol):
    """Asks the database whether a local transaction has only read, and ends such a reader by a local COMMIT.

    The reader is neither named nor prepared, and commits after the deciding branch has answered.
    """

    @property
    def datasource(self) -> str: ...

    def start_asking(self) -> None: ...

    def await_answer(self) -> bool:
        """Whether the database says that the transaction has only read. An exception is a vote to roll back."""

    def require_alive(self) -> None:
        """Raise if the session is known to be lost, and its locks with it. Does no I/O that waits."""

    def start_commit(self) -> None: ...

    def await_commit(self) -> None:
        """Wait until the local COMMIT is answered. An exception changes no outcome."""

    def drop(self) -> None:
        """Close the connection, without waiting."""


class Participant(Protocol):
    """One transaction's work in one datasource, as the coordinator sees it. Used by one thread at a time.

    It may also have `needs_decision`, which is true if it has no commit in one phase: it is prepared and decided
    also if it is alone.
    """

    @property
    def datasource(self) -> str: ...

    @property
    def role(self) -> Role: ...

    @property
    def idle(self) -> bool:
        """True while nothing was executed in the branch: the coordinator leaves it out of the protocol."""

    def read_only_check(self, *, committing: bool) -> ReadOnlyCheck | None:
        """A check that asks the database whether the branch has only read.

        None if the commands executed show a write, or if the database cannot be asked. With `committing` false,
        None also after a command whose effect only a COMMIT delivers (NOTIFY).
        """

    def ended_by_sql(self, command: str) -> None:
        """Note that the user's own SQL (`commit` or `rollback`) ended the local transaction: it must vote no."""

    def commit_one_phase(self) -> BranchOutcome:
        """Commit a branch that was never prepared. Failures are ROLLED_BACK, UNKNOWN or LOST, never an exception."""

    def rollback(self) -> BranchOutcome:
        """Roll back the local transaction of a branch that is neither prepared nor marked."""


class Branch(Protocol):
    """A prepared branch, for phase two.

    After an exception out of any method, the coordinator never awaits the same step again: it starts a commit or a
    rollback anew. The branch itself remembers what it has sent and what was answered.
    """

    @property
    def datasource(self) -> str: ...

    @property
    def record(self) -> BranchRecord:
        """The branch's record for the decision; complete once the branch is prepared."""

    def start_commit(self) -> None: ...

    def await_commit(self) -> BranchOutcome:
        """Wait for the end. ABSENT only if the first COMMIT that this branch has sent was answered so."""

    def start_rollback(self) -> None: ...

    def await_rollback(self) -> BranchOutcome:
        """UNKNOWN if the branch may still appear prepared later, or could not be reached."""


class RemembersEnd(Protocol):
    """A branch whose database may end it by itself, and remembers that until it is told to forget it (X/Open:
    xa_forget). Every command to the branch is told of it until then.
    """

    @property
    def remembers_end(self) -> bool:
        """Whether the last answer was that the database had ended the branch otherwise than it was to end."""

    def forget_end(self) -> None:
        """Let the database forget that. Called once the log has the outcome; raises no error."""


def remembers_end(branch: object) -> bool:
    """Whether the branch's database remembers that it had ended it by itself."""
    return bool(getattr(branch, "remembers_end", False))


def forget_ends(branches: Iterable[Any]) -> None:
    """Let databases forget what they remember of these branches: the log has their outcomes."""
    for branch in branches:
        if remembers_end(branch):
            branch.forget_end()


class OpenBranch(Participant, Branch, Protocol):
    """A branch of mode xa, from its first statement to its end.

    It may also have `listed_in_part`, which is true if it may be listed before all of its work is there.
    """

    @property
    def location(self) -> PrepareLocation:
        """The database and role of the session. The log notes it before the first PREPARE is sent there."""

    def name(self, xid: Xid) -> None:
        """Set the xid under which it will prepare; called before `start_prepare`, and before `record` is read."""

    def start_prepare(self) -> None: ...

    def await_prepare(self) -> PrepareVote: ...


class Resolution(Enum):
    """The outcome of a transaction once an abort record was written under its key, or refused."""

    COMMITTED = "committed"  #: the decision was there already
    ABORTED = "aborted"  #: the abort record is there: a decision can never be written any more
    NOTED = "beside a last resource"  #: no abort record was written: a last resource commits before the decision


class Refused(Exception):
    """The decision was not made, and never will be: fenced, aborted, or a failure before anything was written."""


class DecisionStore(Protocol):
    """The store of a transaction's decision: the decision log, or the marked branch's own database."""

    def record(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        """Make the decision to commit durable. `Refused` is definite; any other exception leaves it unknown."""

    def abort(self, gtrid: str) -> Resolution:
        """Resolve an unknown decision by a durable abort record under the gtrid's key.

        An exception leaves it unknown.
        """

    def forget(self, gtrid: str) -> None:
        """Delete the decision, now or later: every branch has answered."""


#: Deletes what a log keeps of these gtrids, durably.
Purge = Callable[[Iterable[str]], object]


class MarkedBranch(Participant, DecisionStore, Protocol):
    """A local transaction whose row in `xids` is the decision."""

    def identity(self) -> str:
        """The identity of its table of marks, which the other branches' names carry; empty if it has none yet."""

    @property
    def location(self) -> PrepareLocation:
        """The table's identity, and the path of its datasource's file; empty if it was configured in code."""

    def mark(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        """Write the row with the records of all other branches; returns once the INSERT is answered."""

    def forget_pointed(self, gtrid: str, purge: Purge) -> None:
        """As `forget`, if the log has a pointer to it: that is deleted after the row, by `purge`."""

    @property
    def purge(self) -> Purge:
        """Deletes the rows of finished transactions, durably. The same object for all transactions of a datasource."""

    def is_decided(self, gtrid: str) -> bool:
        """Whether the row is there. An error if that cannot be read."""
