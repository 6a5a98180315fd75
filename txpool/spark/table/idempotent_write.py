"""Writes that have a name of the user's own: what a rerun meets, so that it finishes or skips, and never doubles.

The record is a row beside the data, written in the very transaction that writes them: the one is there exactly where
the other is. Recovery never deletes it.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from pyspark.sql import DataFrame

from txpool.errors import OperationalError, ProgrammingError
from txpool.idempotency import IdempotentWork
from txpool.resources.records import EarlierRun

# What differs from run to run in the text of one and the same plan: ids of expressions and of RDDs, and addresses.
_VOLATILE = re.compile(r"#\d+L?|(?<=RDD\[)\d+(?=\])|@[0-9a-f]+\b|plan_id=\d+")


@dataclass(frozen=True, slots=True)
class IdempotentWrite(IdempotentWork):
    """A write's name, and the table that it is for; or a stream's, and one of its batches."""

    def claim(self, connection: Any) -> EarlierRun | None:
        """Take the name within the connection's transaction; the run that had it before, once that has ended.

        One that is in doubt is settled by recovery first. Errors: OperationalError where another run has the name and
        does not end; ProgrammingError where that was of other data, or of a later batch.
        """
        cursor = connection.cursor()
        self._records.create(self.source, cursor)
        claimed, earlier = self._insert(cursor)
        return self._checked(earlier, claimed=claimed)

    def earlier_run(self) -> EarlierRun | None:
        """The run that has the name, if one has committed; nothing is taken. ProgrammingError as by `claim`."""
        with closing(self.source.connect()) as connection:
            earlier = self._records.read(connection.cursor(), self.transaction_id, self.target)
        if earlier is not None:
            self._require_same(earlier)
        return earlier

    def _require_same(self, earlier: EarlierRun) -> None:
        if earlier.batch != self.batch:
            raise self._other_work(earlier, f"this is {'no batch' if self.batch is None else f'batch {self.batch}'}")
        if (earlier.plan, earlier.mode) != (self.plan, self.mode):
            what = "its plan was another" if self.batch is None else "its schema or its offsets were others"
            raise self._other_work(earlier, what)

    def _in_progress(self) -> OperationalError:
        return OperationalError(
            f"{self.gtrid}: another run of transaction_id={self.transaction_id!r} is writing {self.target} now, or "
            "is in doubt with a process that lives, or that this node does not recover: `txpool-recovery list` "
            "tells. Nothing was written, do it again later"
        )

    def require_partitions(self, connection: Any, partitions: int) -> None:
        """Keep how many partitions there are, where each is a transaction of its own; ProgrammingError for others."""
        kept = self._records.keep(connection.cursor(), self.transaction_id, self.target, partitions)
        if kept != partitions:
            raise ProgrammingError(
                f"transaction_id={self.transaction_id!r} has begun to write {self.target} in {kept} partitions, and "
                f"now there are {partitions}: whoever goes on needs the same ones. Nothing was written."
            )

    def require_same(self, earlier: EarlierRun, df: DataFrame) -> None:
        """What has committed is all that the DataFrame has, in one transaction. ProgrammingError.

        It is not where partitions have committed by themselves, and not all have, or where their number of rows is
        another, which is counted where the plan may not tell data apart.
        """
        if earlier.rows is None:
            raise ProgrammingError(
                f"transaction_id={self.transaction_id!r} has written a part of {self.target}, with "
                "atomicity='partition': end it the same way. Nothing was written."
            )
        if must_count(df):
            self.require_rows(earlier, df.count())

    def require_rows(self, earlier: EarlierRun, rows: int) -> None:
        """Their number must be the same, where the plan may not tell data apart. ProgrammingError."""
        if earlier.rows is not None and rows != earlier.rows:
            raise self._other_work(earlier, f"there are {rows} rows now")

    def _other_work(self, earlier: EarlierRun, why: str) -> ProgrammingError:
        if earlier.batch is not None:
            return ProgrammingError(
                f"batch {earlier.batch} of stream {self.transaction_id!r} has gone to {self.target} already, as "
                f"{earlier.gtrid}: {why}. Go on with the checkpoint and the code that it had, or give a "
                "stream of other data a name of its own. Nothing was written."
            )
        return ProgrammingError(
            f"transaction_id={self.transaction_id!r} has written {earlier.rows} rows into {self.target} already, as "
            f"{earlier.gtrid} (mode {earlier.mode}), of other data: {why}. Give this write a name of its own. Nothing "
            "was written."
        )


def must_count(df: DataFrame) -> bool:
    """Whether its rows have to be counted, since no file tells by its path which data they are."""
    return not df.inputFiles()


def fingerprint(df: DataFrame) -> str:
    """A digest of what a DataFrame is made of: its schema, its plan, and the folders that it reads."""
    plan = _VOLATILE.sub("", df._jdf.queryExecution().analyzed().toString())
    folders = sorted({str(PurePosixPath(file).parent) for file in df.inputFiles()})
    return hashlib.sha256("\n".join([df.schema.json(), plan, *folders]).encode()).hexdigest()
