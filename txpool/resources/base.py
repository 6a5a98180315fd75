"""What the coordinator needs of a resource, and what recovery needs of its resource manager.

Prepare and commit are split-phase: the coordinator starts every branch, then awaits every branch, so that databases
work at the same time without a thread pool. A resource manager that can only block does its work in the start.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from txpool.xid import Xid


class Role(Enum):
    """What a branch is in its transaction; the value is the datasource's `mode`."""

    PREPARED = "xa"  #: it prepares, and the log or a marked branch decides
    MARKED = "cmr"  #: its local commit, with its row, is the decision
    LAST = "last-resource"  #: it commits once all others have prepared, and leaves no mark
    ALONE = "local"  #: it takes part in no transaction with others


class PrepareVote(Enum):
    """A branch's answer to PREPARE; an exception is the vote to roll back."""

    COMMIT = "commit"
    READ_ONLY = "read-only"  #: it did nothing, and takes no part in phase two


class BranchOutcome(Enum):
    """How a branch ended, in the database's own word."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"  #: no answer, or none that lasts: recovery asks again
    LOST = "lost"  #: it is gone, and the database cannot say how it ended


@dataclass(frozen=True, slots=True)
class BranchRecord:
    """What a decision keeps of a branch: enough to finish it on another day, from another process."""

    xid: Xid
    datasource: str
    #: The server's own identity: a url that points elsewhere today answers "absent" without meaning it.
    identity: str = ""
    #: What the resource manager needs to tell how a branch that is gone has ended (PostgreSQL: its transaction id).
    evidence: Mapping[str, str] = field(default_factory=dict)


_ENCODER = json.JSONEncoder(separators=(",", ":"))


def encode(branches: Iterable[BranchRecord]) -> str:
    """The branches of a decision as JSON, for a log's record or a marked row, which have the number of its format."""
    rows = [[b.xid.bqual, b.datasource, b.identity, dict(b.evidence)] for b in branches]
    return _ENCODER.encode(rows)


def decode(gtrid: str, text: str) -> tuple[BranchRecord, ...]:
    """The branches that `encode` wrote; ValueError where the text is damaged, or a later version's."""
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            return tuple(
                BranchRecord(Xid(gtrid, bqual), datasource, identity, evidence)
                for bqual, datasource, identity, evidence in found
            )
    except (TypeError, ValueError) as error:
        raise ValueError(f"the record of {gtrid} is damaged: {error}") from error
    raise ValueError(f"the record of {gtrid} has format {found.get('format')}, which is a later txpool's: use that one")


#: A database's identity, and the role that a session logged in there as.
LocationKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PrepareLocation:
    """Where a branch is prepared, and as whom: what recovery must be able to reach. Holds no secret."""

    datasource: str
    #: The server's own identity; empty where it does not tell it.
    identity: str = ""
    #: The role that the session logged in as, as the server numbers it; empty where it has none.
    role: str = ""
    #: The datasource's file; empty where it came from code.
    path: str = ""

    @property
    def key(self) -> LocationKey:
        return self.identity, self.role


class ReadOnlyCheck(Protocol):
    """A part that seems to have only read: whether that is so, and its end after the others'."""

    @property
    def datasource(self) -> str: ...

    def start_asking(self) -> None: ...

    def await_answer(self) -> bool:
        """Whether it has only read, in the database's own word. An exception is a vote to roll back."""

    def require_alive(self) -> None:
        """Raise where its session is known to be lost, with its locks; no I/O that waits."""

    def start_commit(self) -> None: ...

    def await_commit(self) -> None:
        """An exception changes no outcome."""

    def drop(self) -> None:
        """Close the connection, without waiting."""


class Participant(Protocol):
    """One transaction's part in one datasource, as the coordinator sees it. Used by one thread at a time."""

    @property
    def datasource(self) -> str: ...

    @property
    def role(self) -> Role: ...

    @property
    def idle(self) -> bool:
        """True while nothing was executed in it: it takes no part in the protocol."""

    def read_only_check(self, *, committing: bool) -> ReadOnlyCheck | None:
        """How to ask whether it has only read; None where what was executed shows a write, or nobody can say.

        With `committing` false, None also where it has sent what only a COMMIT delivers (NOTIFY).
        """

    def ended_by_sql(self, command: str) -> None:
        """The user's own SQL (`commit` or `rollback`) ended the local transaction: it can never vote to commit."""

    def commit_one_phase(self) -> BranchOutcome:
        """Commit a part that was never prepared: ROLLED_BACK and UNKNOWN are answers, an exception is not."""

    def rollback(self) -> BranchOutcome:
        """End the local transaction of one that was neither prepared nor marked."""


class Branch(Protocol):
    """A part that ends prepared, for phase two.

    After any exception out of a method, the next method called is a rollback's or a commit's again, never the same
    await: a branch knows what it has sent and what was answered.
    """

    @property
    def datasource(self) -> str: ...

    @property
    def record(self) -> BranchRecord:
        """What the decision keeps; complete once it is prepared."""

    def start_commit(self) -> None: ...

    def await_commit(self) -> BranchOutcome: ...

    def start_rollback(self) -> None: ...

    def await_rollback(self) -> BranchOutcome:
        """UNKNOWN where the branch may still appear prepared later, or could not be reached."""


class OpenBranch(Participant, Branch, Protocol):
    """A part that prepares, from its work on."""

    @property
    def location(self) -> PrepareLocation:
        """Where it is prepared: the log knows that before any PREPARE is sent there."""

    def name(self, xid: Xid) -> None:
        """Give it the name it will be prepared under; before `start_prepare`, and before `record` is read."""

    def start_prepare(self) -> None: ...

    def await_prepare(self) -> PrepareVote: ...


class Resolution(Enum):
    """How a transaction stands once an abort record has been tried under its key."""

    COMMITTED = "committed"  #: the abort record met the decision
    ABORTED = "aborted"  #: the abort record has taken the decision's place, for ever


class Refused(Exception):
    """The decision was not made, and never will be: fenced, aborted, or a failure before anything was written."""


class DecisionStore(Protocol):
    """Where a transaction's decision is kept: the decision log, or the marked branch's own database."""

    def record(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        """Make the decision to commit durable. `Refused` is definite; any other exception leaves it unknown."""

    def abort(self, gtrid: str) -> Resolution:
        """Establish the truth by a durable abort record under the gtrid's key; an exception leaves it unknown."""

    def forget(self, gtrid: str) -> None:
        """Every branch has answered: the decision may go, lazily."""


class MarkedBranch(Participant, DecisionStore, Protocol):
    """A local transaction whose row in `xids` is the decision."""

    def identity(self) -> str:
        """The identity of its table of marks, by which the other branches name it; empty where it has none yet."""

    def mark(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        """Write the row with the names of all other branches; returns once the INSERT is answered."""


@dataclass(frozen=True, slots=True)
class PreparedBranch:
    """A prepared branch of ours, as a database lists it."""

    xid: Xid
    #: Seconds since it was prepared by the database's own clock, for people only: nothing is inferred from age.
    age: float | None = None
    #: Who prepared it, as the server tells people; None where it does not tell.
    owner: str | None = None
    #: Its owner and all roles that are members of it, as the server numbers them: whoever logged in as one of these
    #: may have prepared it. None where the server does not tell, or where whoever asks has logged in as one of these,
    #: or was configured with its owner.
    roles: frozenset[str] | None = None
    #: The identity of the database that it is in, and what people call that, where it is another of the same server.
    elsewhere: str = ""
    database: str = ""

    def prepared_by(self, logins: Collection[str]) -> bool:
        """Whether one of these login roles may have prepared it. A name alone is a claim, never evidence."""
        return self.roles is None or not self.roles.isdisjoint(logins)


@dataclass(frozen=True, slots=True)
class PreparedSlots:
    """How many transactions a database's server can hold prepared, and how many it holds, anybody's."""

    maximum: int
    taken: int


class BranchRecovery(Protocol):
    """What recovery needs of a datasource that prepares. Every method opens what it needs, and closes it."""

    def identity(self) -> str:
        """The server's own identity, to be compared with a decision's."""

    def recover(self) -> list[PreparedBranch]:
        """The prepared branches that have a name of ours, anybody's: in this database, and in others of its server."""

    def logins(self) -> frozenset[str]:
        """The roles that sessions of this configuration log in as, as the server numbers them."""

    def commit(self, record: BranchRecord) -> BranchOutcome: ...

    def rollback(self, record: BranchRecord) -> BranchOutcome: ...


class XidsTable(Protocol):
    """What recovery needs of a marked datasource."""

    def read(self) -> list[MarkedRow]:
        """Every row and tombstone, read without resolving anything."""

    def tombstone(self, gtrid: str, identity: str = "") -> MarkedRow:
        """Insert an abort tombstone under the gtrid's key, or meet what is there and make it durable.

        An error where the table is not the one of this identity: that one has not answered.
        """

    def delete(self, gtrids: Iterable[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class MarkedRow:
    """A row of `xids`: a decision with its other branches, or (`committed` false) a tombstone."""

    gtrid: str
    node: str
    committed: bool
    branches: tuple[BranchRecord, ...] = ()


class StagingTable(Protocol):
    """The staging table of one Spark write of a transaction."""

    @property
    def gtrid(self) -> str: ...

    @property
    def name(self) -> str:
        """Its full name, as SQL wants it."""


class StagingArea(Protocol):
    """Recovery's view of the staging tables in one database. Every method opens what it needs, and closes it."""

    def tables(self) -> Sequence[StagingTable]:
        """All that are there, and ours."""

    def drop(self, table: StagingTable) -> None:
        """Drop it, where it is still there."""
