"""While a Spark job runs: takes out of the way what attempts that Spark gave up have left prepared.

A retry that works on the same rows waits for their locks, and nobody else would ever free them. Spark has no event for
Python to wait on, so its status is read once a second; the databases are asked only when an attempt has ended badly
and another one runs for the same partition.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import monotonic

from pyspark import InheritableThread

from txpool.datasource import DataSource
from txpool.spark.commit.attempts import Candidates
from txpool.spark.commit.background import BackgroundThread
from txpool.spark.commit.listing import list_attempts, roll_back
from txpool.spark.commit.status import TaggedJob
from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")

_PERIOD = 1.0
_LONGEST = 8.0
#: Seconds within which a retry has surely begun, and has adopted an earlier attempt if it was going to.
GRACE = 20.0


class AttemptMonitor(BackgroundThread):
    """One thread for the length of a block. Its candidates are the driver's own again once the block has ended."""

    def __init__(
        self,
        job: TaggedJob,
        transaction: Transaction,
        write: int,
        candidates: Candidates,
        datasources: Sequence[DataSource],
    ) -> None:
        super().__init__("txpool-spark-monitor", InheritableThread)
        self._job = job
        self._transaction = transaction
        self._write = write
        self._candidates = candidates
        self._datasources = datasources
        #: Since when a running attempt is known to run.
        self._since: dict[int, float] = {}

    def _run(self) -> None:
        pause = _PERIOD
        while not self._stopped.wait(pause):
            try:
                busy = self._roll_back_lost()
            except Exception:
                logger.warning("%s: the state of its Spark job is unknown now", self._transaction.gtrid, exc_info=True)
                busy = False
            pause = _PERIOD if busy else min(2 * pause, _LONGEST)

    def _roll_back_lost(self) -> bool:
        """Strike what must be struck. True while all is well, and Spark alone was asked, or something was struck."""
        if not self._transaction.active:
            # It can only roll back: whatever the tasks go on to do is in vain.
            self._job.cancel()
        troubles = self._job.failed_attempts()
        now = monotonic()
        self._since = {attempt: self._since.get(attempt, now) for attempt in troubles.running}
        waiting = set(troubles.running.values())
        ended = {attempt for attempt, partition in troubles.ended.items() if partition in waiting}
        if not ended:
            return True
        stuck = {partition for attempt, partition in troubles.running.items() if now - self._since[attempt] > GRACE}
        listing = list_attempts(self._datasources, gtrid=self._transaction.gtrid, write=self._write)
        # Where a database did not answer, what seems incomplete may be complete, and a retry may be adopting it.
        partial = bool(listing.unreached)
        struck = self._candidates.strike(listing.attempts, ended=ended, stuck=stuck, partial=partial)
        for attempt in struck:
            logger.warning(
                "%s: attempt %d of partition %d was given up by Spark: its %d prepared branches roll back",
                self._transaction.gtrid,
                attempt.number,
                attempt.partition,
                len(attempt.records),
            )
        roll_back(struck, self._datasources)
        return bool(struck)
