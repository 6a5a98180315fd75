"""The protocols between a database and recovery: what is prepared, what was marked, what a Spark write has left."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from txpool.resources.base import Branch, BranchOutcome, BranchRecord
from txpool.xid import Xid


@dataclass(frozen=True, slots=True)
class PreparedBranch:
    """A prepared branch with an xid of txpool's form, as a database lists it."""

    xid: Xid
    #: Seconds since the PREPARE by the database's clock. For people only: no rule depends on age.
    age: float | None = None
    #: The name of the role that prepared the branch; None if the server does not tell.
    owner: str | None = None
    #: The owner and all members of the owner, by the server's numbers: a session that logged in as one of them may have
    #: prepared the branch. None if the server does not tell. None also if no comparison is needed: the listing
    #: session logged in as one of them, or the owner is configured.
    roles: frozenset[str] | None = None
    #: The identity and the name of the branch's database, if it is another one of the same server; else empty.
    elsewhere: str = ""
    database: str = ""
    #: The evidence that its PREPARE would have given to a `BranchRecord`, for who adopts it from the listing.
    evidence: Mapping[str, str] = field(default_factory=dict, compare=False)

    def prepared_by(self, logins: Collection[str]) -> bool:
        """Whether a session with one of these login roles may have prepared it. The xid alone proves nothing."""
        return self.roles is None or not self.roles.isdisjoint(logins)


class LackOfRight(str):
    """Why a branch cannot be ended, if that is a right that recovery's user lacks: trying again does not help."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PreparedSlots:
    """How many prepared transactions a server can hold, and how many it holds, of txpool and of others."""

    maximum: int
    taken: int


class BranchRecovery(Protocol):
    """Recovery's access to a datasource of mode xa. Thread-safe: every method opens a connection and closes it.

    It may also have `slots() -> PreparedSlots`, for alarms; `why_not(record) -> str`, the reason why the last commit or
    rollback of a branch was UNKNOWN, a `LackOfRight` if it is one; `phase_two() -> SharedPhaseTwo`, by which a pass
    ends all of its branches, instead of by `commit` and `rollback`; `connected()`; and `each_prepared() ->
    Iterator[PreparedBranch]`: as `recover`, one after the other, if there may be very many. See `optional`.
    """

    def identity(self) -> str:
        """The database's identity, which recovery compares with a record's."""

    def recover(self) -> list[PreparedBranch]:
        """The prepared branches whose xid has txpool's form, of any role.

        They are those of this database, and may include those of other databases of the same server.
        """

    def logins(self) -> frozenset[str]:
        """The roles that the datasource's own sessions log in as, by the server's numbers."""

    def commit(self, record: BranchRecord) -> BranchOutcome:
        """Commit a prepared branch. Of one that is gone: how it ended by its evidence, else ABSENT or LOST."""

    def rollback(self, record: BranchRecord) -> BranchOutcome:
        """Roll a prepared branch back. Of one that is gone: how it ended by its evidence, else ABSENT or LOST."""


def optional(
    access: BranchRecovery, part: Literal["slots", "why_not", "phase_two", "connected", "each_prepared"]
) -> Callable[..., Any] | None:
    """A method that it need not have; None if it has none."""
    found: Callable[..., Any] | None = getattr(access, part, None)
    return found


def connected(access: BranchRecovery, raw: Any = None) -> AbstractContextManager[BranchRecovery]:
    """The access over one connection for several questions of one thread, if it has such: to connect takes longest.

    That is `raw` if there is one: a session of the datasource's own, which stays open, and in its transaction.
    """
    found = optional(access, "connected")
    return nullcontext(access) if found is None else found() if raw is None else found(raw)


def each_prepared(access: BranchRecovery) -> Iterable[PreparedBranch]:
    """What `recover` lists, one after the other if the access has such."""
    found = optional(access, "each_prepared")
    return access.recover() if found is None else found()


class NothingPrepared:
    """Recovery's access to what prepares nothing, since a datasource's branches carry its work: a queue, a lake."""

    def __init__(self, name: str) -> None:
        self._name = name

    def identity(self) -> str:
        return f"queue:{self._name}"

    def recover(self) -> list[PreparedBranch]:
        return []

    def logins(self) -> frozenset[str]:
        return frozenset()

    def commit(self, record: BranchRecord) -> BranchOutcome:
        return BranchOutcome.UNKNOWN

    def rollback(self, record: BranchRecord) -> BranchOutcome:
        return BranchOutcome.UNKNOWN


class SharedPhaseTwo(Protocol):
    """Ends many prepared branches of one database over a few connections. Used by one thread at a time.

    A branch may be started while earlier ones have no answer. If a connection is lost, each branch without an answer is
    tried again or UNKNOWN: what became of it is not known.
    """

    def branch(self, record: BranchRecord) -> Branch:
        """A branch that is prepared already, known by its record alone. No method of it raises an error."""

    def close(self) -> None:
        """Close the connections, without waiting. They were closed already if every branch has answered."""


class XidsTable(Protocol):
    """Recovery's access to the table of marks of a datasource of mode cmr."""

    def read(self) -> list[MarkedRow]:
        """Every row and tombstone, read without resolving anything."""

    def tombstone(self, gtrid: str, identity: str = "") -> MarkedRow:
        """Insert a tombstone under the gtrid's key. If a row has that key, make it durable, and return it.

        An error means that nothing is known: the table is out of reach, or is not the one of this identity.
        """

    def delete(self, gtrids: Iterable[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class MarkedRow:
    """A row of `xids`: a decision with its other branches, or (if `committed` is false) a tombstone."""

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
        """The table's full name, quoted for SQL."""


class StagingArea(Protocol):
    """Recovery's access to the staging tables of one database. Every method opens a connection and closes it."""

    def tables(self) -> Sequence[StagingTable]:
        """All staging tables whose owner the datasource trusts."""

    def drop(self, table: StagingTable) -> None:
        """Drop the table, if it exists."""
