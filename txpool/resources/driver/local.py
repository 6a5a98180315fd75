"""Local transactions: the base of all branches, and the branch that must be the only one of its transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txpool.errors import NotSupportedError, TransactionRolledBack
from txpool.resources.base import (
    BranchOutcome,
    BranchRecord,
    PrepareLocation,
    PrepareVote,
    ReadOnlyCheck,
    Refused,
    Role,
)
from txpool.resources.deadlines import NO_DEADLINES, Deadlines
from txpool.resources.driver.driver import Driver
from txpool.xid import Xid

if TYPE_CHECKING:
    from txpool.resources.driver.raw import RawConnection

_COMMITTED, _ROLLED_BACK = BranchOutcome.COMMITTED, BranchOutcome.ROLLED_BACK
_NONE: frozenset[str] = frozenset()


class LocalTransaction:
    """The local transaction of one physical connection. Used by one thread at a time."""

    __slots__ = ("_deadlines", "_dialect", "_driver", "_ended_commands", "_raw", "datasource", "failure")

    def __init__(
        self, datasource: str, driver: Driver, raw: RawConnection, deadlines: Deadlines = NO_DEADLINES
    ) -> None:
        self.datasource = datasource
        self._driver = driver
        self._raw = raw
        self._deadlines = deadlines
        self._dialect = driver.dialect
        #: The reason why `commit_one_phase` did not answer COMMITTED.
        self.failure: BaseException | None = None
        #: `commit` and `rollback`, if the user's own SQL has executed them.
        self._ended_commands: frozenset[str] = _NONE
        self._dialect.watch_commands(raw)

    @property
    def idle(self) -> bool:
        return not self._ended_commands and not self._dialect.in_transaction(self._raw)

    def read_only_check(self, *, committing: bool) -> ReadOnlyCheck | None:
        if self._ended_commands:
            return None
        return self._dialect.read_only_check(
            self.datasource, self._driver, self._raw, self._deadlines, committing=committing
        )

    def ended_by_sql(self, command: str) -> None:
        self._ended_commands |= {command}

    def commit_one_phase(self) -> BranchOutcome:
        """Commit what is open. If the user's own SQL has committed the rest before, all of it is committed then."""
        if self._ended_commands:
            if "rollback" in self._ended_commands:
                self.failure = self._ended_by_sql_error()
                return self._rolled_back_outcome()
            if not self._dialect.in_transaction(self._raw):
                return _COMMITTED
        try:
            self._dialect.commit(self._raw)
        except Refused as refusal:
            self.failure = self._refusal(refusal)
            return self._rolled_back_outcome()
        except Exception as error:
            error.add_note(f"datasource {self.datasource}: the reply to COMMIT was lost")
            self.failure = error
            return BranchOutcome.UNKNOWN
        return _COMMITTED

    def rollback(self) -> BranchOutcome:
        """Roll back what is open; COMMITTED if some of it was committed before, and LOST if it may have been."""
        outcome = self._dialect.rollback(self._driver, self._raw, self._deadlines.after_decision())
        return BranchOutcome.COMMITTED if "commit" in self._ended_commands else outcome

    def _rolled_back_outcome(self) -> BranchOutcome:
        """Roll back what could not commit: LOST if a part of it is committed, or may be, and people must look."""
        return _ROLLED_BACK if self.rollback() is _ROLLED_BACK else BranchOutcome.LOST

    def _refusal(self, refusal: Refused) -> BaseException:
        cause = refusal.__cause__
        if cause is None:
            return TransactionRolledBack(f"datasource {self.datasource}: {refusal}", datasource=self.datasource)
        cause.add_note(f"datasource {self.datasource} refused to commit")
        return cause

    def _ended_by_sql_error(self, gtrid: str | None = None) -> TransactionRolledBack:
        done = " and ".join(sorted(each.upper() for each in self._ended_commands))
        kept = "What was done before the COMMIT stays. " if "commit" in self._ended_commands else ""
        return TransactionRolledBack(
            f"datasource {self.datasource}: the program's own SQL executed {done} inside the transaction, so it "
            f"cannot commit as a whole. {kept}Leave commit and rollback to txpool",
            gtrid=gtrid,
            datasource=self.datasource,
        )


class LocalBranch(LocalTransaction):
    """A branch that can neither prepare nor be marked: it commits in one phase."""

    _xid: Xid | None = None

    def __init__(
        self,
        datasource: str,
        driver: Driver,
        raw: RawConnection,
        deadlines: Deadlines = NO_DEADLINES,
        *,
        role: Role = Role.ALONE,
    ) -> None:
        super().__init__(datasource, driver, raw, deadlines)
        self.role = role

    @property
    def record(self) -> BranchRecord:
        if self._xid is None:
            raise self._refuse_prepare()
        return BranchRecord(self._xid, self.datasource)

    @property
    def location(self) -> PrepareLocation:
        raise self._refuse_prepare()

    def name(self, xid: Xid) -> None:
        self._xid = xid

    def start_prepare(self) -> None:
        raise self._refuse_prepare()

    def await_prepare(self) -> PrepareVote:
        raise self._refuse_prepare()

    def start_commit(self) -> None:
        raise self._refuse_prepare()

    def await_commit(self) -> BranchOutcome:
        raise self._refuse_prepare()

    def start_rollback(self) -> None:
        """Nothing: `await_rollback` does the work."""

    def await_rollback(self) -> BranchOutcome:
        return self.rollback()

    def _refuse_prepare(self) -> NotSupportedError:
        return NotSupportedError(
            f"datasource {self.datasource} can neither prepare nor be marked: it must be alone in its transaction"
        )
