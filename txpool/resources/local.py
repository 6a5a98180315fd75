"""Local transactions: one that must be alone, and what it has in common with those that need not be."""

from __future__ import annotations

from typing import Any

from txpool.errors import NotSupportedError, TransactionRolledBack
from txpool.resources.base import Answer, BranchRecord, Reading, Refused, Site, Vote
from txpool.resources.driver import Driver
from txpool.resources.patience import FOREVER, Patience
from txpool.xid import Xid


class LocalTransaction:
    """The local transaction of one physical connection. Used by one thread at a time."""

    def __init__(self, datasource: str, driver: Driver, raw: Any, patience: Patience = FOREVER) -> None:
        self.datasource = datasource
        #: Why `commit_one_phase` did not answer COMMITTED.
        self.failure: BaseException | None = None
        self._driver = driver
        self._raw = raw
        self._patience = patience
        self._dialect = driver.dialect
        #: `commit` and `rollback` where the user's own SQL has done that.
        self._disturbed: set[str] = set()
        self._dialect.watch(raw)

    @property
    def idle(self) -> bool:
        return not self._disturbed and not self._dialect.is_open(self._raw)

    def reading(self, *, committing: bool) -> Reading | None:
        if self._disturbed:
            return None
        return self._dialect.reading(self.datasource, self._driver, self._raw, self._patience, committing=committing)

    def disturb(self, command: str) -> None:
        self._disturbed.add(command)

    def commit_one_phase(self) -> Answer:
        """Commit what is open; where the user's SQL has committed the rest already, all of it is committed then."""
        if "rollback" in self._disturbed:
            self.failure = self._disturbance()
            return self._failed()
        if not self._dialect.is_open(self._raw):
            return Answer.COMMITTED
        try:
            self._dialect.commit(self._raw)
        except Refused as refusal:
            self.failure = self._refusal(refusal)
            return self._failed()
        except Exception as error:
            error.add_note(f"datasource {self.datasource}: the reply to COMMIT was lost")
            self.failure = error
            return Answer.UNKNOWN
        return Answer.COMMITTED

    def rollback(self) -> Answer:
        """Roll back what is open; COMMITTED where the user's own SQL has committed some of it before."""
        self._dialect.rollback(self._driver, self._raw, self._patience.end())
        return Answer.COMMITTED if "commit" in self._disturbed else Answer.ROLLED_BACK

    def _failed(self) -> Answer:
        # A part that is committed and a part that is not: no word for that but "look there".
        return Answer.UNKNOWN if self.rollback() is Answer.COMMITTED else Answer.ROLLED_BACK

    def _refusal(self, refusal: Refused) -> BaseException:
        cause = refusal.__cause__
        if cause is None:
            return TransactionRolledBack(f"datasource {self.datasource}: {refusal}", datasource=self.datasource)
        cause.add_note(f"datasource {self.datasource} refused to commit")
        return cause

    def _disturbance(self, gtrid: str | None = None) -> TransactionRolledBack:
        done = " and ".join(sorted(self._disturbed))
        return TransactionRolledBack(
            f"datasource {self.datasource}: the program's own SQL executed {done} inside the transaction, so it "
            "cannot commit as a whole. Leave the end of a transaction to txpool",
            gtrid=gtrid,
            datasource=self.datasource,
        )


class LocalBranch(LocalTransaction):
    """A branch that can only be alone: it commits in one phase, and refuses to prepare."""

    _xid: Xid | None = None

    @property
    def record(self) -> BranchRecord:
        if self._xid is None:
            raise self._alone()
        return BranchRecord(self._xid, self.datasource)

    @property
    def site(self) -> Site:
        raise self._alone()

    def name(self, xid: Xid) -> None:
        self._xid = xid

    def start_prepare(self) -> None:
        raise self._alone()

    def await_prepare(self) -> Vote:
        raise self._alone()

    def start_commit(self) -> None:
        raise self._alone()

    def await_commit(self) -> Answer:
        raise self._alone()

    def start_rollback(self) -> None:
        """Nothing: a rollback of one connection has nothing to overlap with."""

    def await_rollback(self) -> Answer:
        return self.rollback()

    def _alone(self) -> NotSupportedError:
        return NotSupportedError(
            f"datasource {self.datasource} can neither prepare nor be marked: it must be alone in its transaction"
        )
