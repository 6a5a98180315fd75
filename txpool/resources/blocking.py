"""Branches whose commands block: each does its work where it is started."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from txpool.resources.base import BranchOutcome, BranchRecord, PrepareLocation, PrepareVote, ReadOnlyCheck, Role
from txpool.xid import Xid, make_xid

if TYPE_CHECKING:
    from txpool.resources.base import Branch
    from txpool.resources.own.resource import Work
    from txpool.resources.recovery_access import BranchRecovery

logger = logging.getLogger("txpool")


class BlockingBranch(ABC):
    """A prepared branch that is ended by one call, which waits for the answer."""

    record: BranchRecord
    _outcome = BranchOutcome.UNKNOWN

    @property
    def datasource(self) -> str:
        return self.record.datasource

    @abstractmethod
    def end(self, *, commit: bool) -> BranchOutcome:
        """Commit it, or roll it back, and tell how it ended. UNKNOWN if that is not known."""

    def start_commit(self) -> None:
        self._outcome = BranchOutcome.UNKNOWN
        self._outcome = self.end(commit=True)

    def await_commit(self) -> BranchOutcome:
        return self._outcome

    def start_rollback(self) -> None:
        self._outcome = BranchOutcome.UNKNOWN
        self._outcome = self.end(commit=False)

    def await_rollback(self) -> BranchOutcome:
        return self._outcome


class OpenBlockingBranch(BlockingBranch):
    """Such a branch from its first work to its end: what it is like before it is prepared."""

    role = Role.PREPARED
    #: To prepare and commit without a decision would leave it prepared for as long as this process lives, if the commit
    #: fails, and then roll it back.
    needs_decision = True

    def __init__(self, work: Work, location: PrepareLocation, gtrid: str) -> None:
        self.location = location
        # Until the coordinator names it otherwise.
        self.record = BranchRecord(make_xid(gtrid, 0, location.datasource), location.datasource, location.identity)
        self._work = work
        self._begun = self._prepared = False

    @property
    def idle(self) -> bool:
        return not self._begun and self._work.idle

    def read_only_check(self, *, committing: bool) -> ReadOnlyCheck | None:
        return None

    def ended_by_sql(self, command: str) -> None:
        """Nothing: there is no SQL."""

    def name(self, xid: Xid) -> None:
        self.record = self.record._replace(xid=xid)

    @abstractmethod
    def start_prepare(self) -> None: ...

    def await_prepare(self) -> PrepareVote:
        return PrepareVote.COMMIT

    def end(self, *, commit: bool) -> BranchOutcome:
        outcome, failure = self.end_prepared(commit=commit)
        if failure:
            logger.warning("%s: %s is left to recovery: %s", self.datasource, self.record.xid.joined, failure)
        return outcome

    @abstractmethod
    def end_prepared(self, *, commit: bool) -> tuple[BranchOutcome, str]:
        """End it: its outcome, and the reason if that is UNKNOWN. Raises no Exception."""

    def rollback(self) -> BranchOutcome:
        self.start_rollback()
        return self.await_rollback()


class OneByOne:
    """Phase two by recovery's access, a call for each branch."""

    def __init__(self, access: BranchRecovery) -> None:
        self._access = access

    def branch(self, record: BranchRecord) -> BlockingBranch:
        """A branch that is prepared already, known by its record alone."""
        return _Recovered(self._access, record)


class _Recovered(BlockingBranch):
    def __init__(self, access: BranchRecovery, record: BranchRecord) -> None:
        self._access = access
        self.record = record

    def end(self, *, commit: bool) -> BranchOutcome:
        return self._access.commit(self.record) if commit else self._access.rollback(self.record)


class EndedWhenAwaited:
    """Phase two of a pass: ends each branch by `BranchRecovery.commit` or `rollback`, when its answer is awaited.

    Not when it is started, as `BlockingBranch` does: of several in one datasource, each has the whole time of a step.
    """

    def __init__(self, access: BranchRecovery, close: Callable[[], object] = lambda: None) -> None:
        self._access, self._close = access, close

    def branch(self, record: BranchRecord) -> Branch:
        return _EndedWhenAwaited(self._access, record)

    def close(self) -> None:
        """Close the connection, if it has one."""
        self._close()


class _EndedWhenAwaited:
    def __init__(self, access: BranchRecovery, record: BranchRecord) -> None:
        self.record = record
        self._access = access

    @property
    def datasource(self) -> str:
        return self.record.datasource

    def start_commit(self) -> None:
        """Nothing: `commit` sends and waits."""

    def await_commit(self) -> BranchOutcome:
        return self._access.commit(self.record)

    def start_rollback(self) -> None:
        """Nothing: `rollback` sends and waits."""

    def await_rollback(self) -> BranchOutcome:
        return self._access.rollback(self.record)


class RecoveryOneByOne(ABC):
    """Recovery's access to branches that are ended by one call each, and whose failures have reasons."""

    def __init__(self) -> None:
        self._failures: dict[Xid, str] = {}

    @abstractmethod
    def end(self, record: BranchRecord, *, commit: bool) -> tuple[BranchOutcome, str]:
        """Commit the branch, or roll it back: how it ended, and the reason if that is UNKNOWN. Raises no Exception."""

    def logins(self) -> frozenset[str]:
        """One without a name: who may prepare there is a matter of the resource's own."""
        return frozenset({""})

    def commit(self, record: BranchRecord) -> BranchOutcome:
        return self._end(record, commit=True)

    def rollback(self, record: BranchRecord) -> BranchOutcome:
        return self._end(record, commit=False)

    def why_not(self, record: BranchRecord) -> str:
        """The reason why a branch's last commit or rollback was UNKNOWN; empty if it was not."""
        return self._failures.get(record.xid, "")

    def _end(self, record: BranchRecord, *, commit: bool) -> BranchOutcome:
        self._failures.pop(record.xid, None)
        outcome, failure = self.end(record, commit=commit)
        if failure:
            self._failures[record.xid] = failure
        return outcome
