"""Ends what a living process has left prepared for too long, if `recovery.overdue-rollback` allows it.

Age only says when to try. The outcome is the decision log's, or the marked datasource's: an abort record or a tombstone
takes the decision's key first, and if it meets a decision, nothing is done. What is beside a last resource is left
alone, since that commits before the decision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from recovery.scan.modules.orphans import OrphanFilter, Vote, poll
from recovery.scan.modules.transactions import OrphanModule, finish_branches, run_steps, tombstone
from recovery.scan.recovery_pass import RecoveryPass
from recovery.scan.snapshot import MARGIN_SECONDS, Snapshot
from txpool.errors import described
from txpool.resources.base import Resolution

logger = logging.getLogger("txpool.recovery")

_DECIDED: Final = "its process is alive, and has decided it: it is left to that, however long it takes"


class OverdueModule:
    """Takes the keys of such transactions. Those that the log decides, `orphans` rolls back in the next pass.

    By then a fresh snapshot shows whether a pointer was written before the abort record; none is written after it.
    """

    name = "overdue"

    def __init__(self, filters: Iterable[OrphanFilter], orphans: OrphanModule) -> None:
        self._filters = tuple(filters)
        self._orphans = orphans

    def run(self, this_pass: RecoveryPass) -> None:
        snapshot = this_pass.snapshot
        if snapshot.overdue_rollback is None:
            return
        after = max(snapshot.overdue_rollback, MARGIN_SECONDS)
        gtrids = [gtrid for gtrid in snapshot.gtrids if snapshot.overdue_by(gtrid) > after]
        if gtrids:
            as_if = replace(snapshot, aborted=snapshot.aborted.union(gtrids))
            run_steps(this_pass, self.name, gtrids, partial(self._start, as_if))

    def _start(self, as_if: Snapshot, this_pass: RecoveryPass, gtrid: str) -> Callable[[], object] | None:
        """Take the transaction's key. `as_if` is the snapshot as it would be with an abort record."""
        snapshot = this_pass.snapshot
        if snapshot.disputed(gtrid):
            return None  # it has an alarm of its own
        if gtrid in snapshot.decisions:
            this_pass.leave_all_alone(gtrid, _DECIDED)
            return None
        last = snapshot.last_resource(gtrid)
        if last:
            this_pass.leave_all_alone(gtrid, _why_left_prepared(last))
            return None
        marked = snapshot.marked_by(gtrid)
        if marked is not None:
            return self._end_marked(this_pass, marked, gtrid)
        ballots = [poll(self._filters, as_if, branch.xid) for branch in snapshot.listed_branches(gtrid)]
        if all(ballot.vote is Vote.ROLLBACK for ballot in ballots):
            self._abort(this_pass, gtrid)
        return None

    def _abort(self, this_pass: RecoveryPass, gtrid: str) -> None:
        resolution = this_pass.log.abort(gtrid)
        if resolution is Resolution.ABORTED:
            _report(this_pass.snapshot, gtrid)
            self._orphans.add_candidates(branch.xid for branch in this_pass.snapshot.listed_branches(gtrid))
            this_pass.leave_all_alone(gtrid, "it is aborted in the log: the next pass rolls it back", alarm=False)
        else:
            last = this_pass.log.last_resources().get(gtrid)
            this_pass.leave_all_alone(gtrid, _DECIDED if last is None else _why_left_prepared(last))

    def _end_marked(self, this_pass: RecoveryPass, marked: str, gtrid: str) -> Callable[[], object] | None:
        try:
            row = tombstone(this_pass, marked, gtrid)
        except Exception as error:  # such as a lock timeout: its row is open in the process's own session
            this_pass.leave_all_alone(gtrid, f"{marked} decides it and has not answered: {described(error)}")
            return None
        if row.committed:
            this_pass.leave_all_alone(gtrid, _DECIDED)
            return None
        _report(this_pass.snapshot, gtrid)
        return finish_branches(this_pass, marked, row)


def _why_left_prepared(last: str) -> str:
    return f"its process is alive and leaves it prepared, and its last resource, {last}, may have committed already"


def _report(snapshot: Snapshot, gtrid: str) -> None:
    logger.warning(
        "%s can never commit any more, and rolls back: its process, incarnation %s of node %s, is alive, and has left "
        "it prepared for longer than recovery.overdue-rollback allows",
        gtrid,
        *reversed(gtrid.split(":")[1:3]),
        extra={"gtrid": gtrid},
    )
