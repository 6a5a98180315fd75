"""The marked branch: a local transaction whose row in `xids` is the decision for all other branches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from txpool import failpoints
from txpool.errors import translate
from txpool.resources.base import BranchOutcome, BranchRecord, PrepareLocation, Purge, Refused, Resolution, Role
from txpool.resources.deadlines import NO_DEADLINES, Deadlines
from txpool.resources.driver.driver import Driver
from txpool.resources.driver.local import LocalTransaction
from txpool.resources.marked.cleanup import CleanupQueue
from txpool.resources.marked.xids import NO_ROW, Xids

if TYPE_CHECKING:
    from txpool.resources.driver.raw import RawConnection


class MarkedTransaction(LocalTransaction):
    """The local transaction of a marked datasource; its commit is the decision of the whole transaction.

    The order of steps: `mark` writes the row and waits for the answer, the other branches prepare, `record` updates the
    row with their evidence and commits, the other branches commit, `forget`. A marked branch that is alone commits in
    one phase, and writes no row.
    """

    role = Role.MARKED

    def __init__(
        self,
        datasource: str,
        driver: Driver,
        raw: RawConnection,
        deadlines: Deadlines = NO_DEADLINES,
        *,
        xids: Xids,
        cleanup: CleanupQueue,
        file: str = "",
    ) -> None:
        super().__init__(datasource, driver, raw, deadlines)
        self._xids = xids
        self._cleanup = cleanup
        self._file = file
        self._identity: str | None = None
        self._row = NO_ROW
        #: Finished rows whose deletion is part of this local transaction.
        self._deleted_with: list[str] = []

    def identity(self) -> str:
        if self._identity is None:
            self._identity = self._xids.identity(self._raw)
        return self._identity

    @property
    def location(self) -> PrepareLocation:
        place: PrepareLocation | None = getattr(self._raw, "location", None)
        login = "" if place is None else place.login
        return PrepareLocation(self.datasource, self.identity(), path=self._file, login=login)

    def mark(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        """Write the row with the records of all other branches; returns once the INSERT is answered."""
        if self._ended_commands:
            raise self._ended_by_sql_error(gtrid)
        if failpoints.armed:
            failpoints.hit("marked.row")
        identity = self.identity()
        taken = self._cleanup.take()
        self._deleted_with = taken
        self._row, deleted = self._xids.mark(
            self._raw, gtrid, branches, taken, identity=identity, until=self._deadlines.before_decision()
        )
        self._deleted_with = deleted
        if len(deleted) != len(taken):
            self._cleanup.put_back(set(taken).difference(deleted))

    def record(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        """Commit the local transaction: the decision. `Refused` is definite, any other error leaves it unknown."""
        if failpoints.armed:
            failpoints.hit("marked.commit")
        try:
            self._xids.commit(self._raw, self._row, branches)
        except Refused as refusal:
            raise Refused(f"datasource {self.datasource} refused to commit {gtrid}: {refusal}") from refusal.__cause__
        except BaseException as error:
            translate(error)
            error.add_note(f"datasource {self.datasource}: whether {gtrid} is committed is not known yet")
            raise
        if self._deleted_with:
            self._cleanup.note_deleted(self._deleted_with)
            self._deleted_with = []
        if failpoints.armed:
            failpoints.hit("marked.committed")

    def abort(self, gtrid: str) -> Resolution:
        """Put a tombstone under the row's key, on another connection; an error leaves the decision unknown."""
        # The first session would hold its lock on the row for as long as it lives.
        self._driver.close(self._raw)
        self._put_back_deleted()
        return Resolution.COMMITTED if self._xids.tombstone(gtrid, self.identity()).committed else Resolution.ABORTED

    def forget(self, gtrid: str) -> None:
        """Delete the row, with the next batch or at once: all other branches have answered."""
        self._cleanup.add(gtrid)

    def forget_pointed(self, gtrid: str, purge: Purge) -> None:
        """As `forget`; the log's pointer to the row is deleted after it."""
        self._cleanup.add_pointed(gtrid, purge)

    @property
    def purge(self) -> Purge:
        """Deletes rows, durably."""
        return self._xids.delete

    def is_decided(self, gtrid: str) -> bool:
        """Whether the row is there."""
        return any(row.gtrid == gtrid and row.committed for row in self._xids.read())

    def rollback(self) -> BranchOutcome:
        """Roll back the local transaction, and with it the row."""
        self._put_back_deleted()
        return super().rollback()

    def _put_back_deleted(self) -> None:
        taken, self._deleted_with = self._deleted_with, []
        self._cleanup.put_back(taken)
