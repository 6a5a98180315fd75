"""Rolls back, while a Spark job runs, what attempts that Spark has given up have left prepared.

A retry that works on the same rows waits for the locks of those branches, and nothing else would release them. Spark
offers Python no event to wait for, so its status is polled, at first once a second. The databases are queried only when
an attempt has failed or was killed and another one runs for the same partition.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import monotonic

from pyspark import InheritableThread

from txpool.datasource import Source
from txpool.spark.commit.attempts import Candidates
from txpool.spark.commit.background import BackgroundThread
from txpool.spark.commit.listing import list_attempts, roll_back
from txpool.spark.commit.status import TaggedJob
from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")

_POLL_SECONDS = 1.0
_MAX_POLL_SECONDS = 8.0
#: Seconds after which a running retry will no longer adopt an earlier attempt.
GRACE = 20.0


class AttemptMonitor(BackgroundThread):
    """Monitors a job for the length of a block. `candidates` belong to its thread until the block has ended."""

    def __init__(
        self,
        job: TaggedJob,
        transaction: Transaction,
        write: int,
        candidates: Candidates,
        datasources: Sequence[Source],
    ) -> None:
        super().__init__("txpool-spark-monitor", InheritableThread)
        self._job = job
        self._transaction = transaction
        self._write = write
        self._candidates = candidates
        self._datasources = datasources
        #: When each running attempt was first seen, by attempt number.
        self._since: dict[int, float] = {}

    def _run(self) -> None:
        pause = _POLL_SECONDS
        while not self._stopped.wait(pause):
            try:
                again_soon = self._roll_back_lost()
            except Exception:
                logger.warning(
                    "%s: the state of its Spark job is not known at the moment", self._transaction.gtrid, exc_info=True
                )
                again_soon = False
            pause = _POLL_SECONDS if again_soon else min(2 * pause, _MAX_POLL_SECONDS)

    def _roll_back_lost(self) -> bool:
        """Roll back the prepared attempts that a retry cannot adopt.

        True if the databases were not queried, or something was rolled back; the next look then follows soon.
        """
        if not self._transaction.active:
            # The transaction can only roll back, so further work of the tasks would be wasted.
            self._job.cancel()
        failed = self._job.failed_attempts()
        now = monotonic()
        self._since = {attempt: self._since.get(attempt, now) for attempt in failed.running}
        retried = set(failed.running.values())
        ended = {attempt for attempt, partition in failed.ended.items() if partition in retried}
        if not ended:
            return True
        stuck = {partition for attempt, partition in failed.running.items() if now - self._since[attempt] > GRACE}
        listing = list_attempts(self._datasources, gtrid=self._transaction.gtrid, write=self._write)
        # Without the branches of a database, a complete attempt may look incomplete while a retry adopts it.
        partial = bool(listing.unreachable)
        rejected = self._candidates.reject(listing.attempts, ended=ended, stuck=stuck, partial=partial)
        for attempt in rejected:
            logger.warning(
                "%s: Spark has given up attempt %d of partition %d: its %d prepared branches roll back",
                self._transaction.gtrid,
                attempt.number,
                attempt.partition,
                len(attempt.records),
            )
        roll_back(rejected, self._datasources)
        return bool(rejected)
