"""Does a write only once under a transaction_id, by a record that a rerun finds.

The record is a row in the same database as the data, written in the same transaction, so there is a record exactly if
the data was committed. Recovery never deletes it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from txpool.errors import OperationalError, ProgrammingError
from txpool.idempotency.once import IdempotentWork
from txpool.resources.records import EarlierRun

if TYPE_CHECKING:
    from txpool.dbapi.connection import PEP249Connection

# What differs between two runs in the text of the same plan: ids of expressions and RDDs, and object addresses.
_VOLATILE = re.compile(r"#\d+L?|(?<=RDD\[)\d+(?=\])|@[0-9a-f]+\b|plan_id=\d+")
_OTHER_BATCH = "its schema or its offsets were different"


@dataclass(frozen=True, slots=True)
class IdempotentWrite(IdempotentWork):
    """One write into a table under a transaction_id, or one batch of a stream."""

    def claim(self, connection: PEP249Connection) -> EarlierRun | None:
        """Claim the transaction_id within the connection's transaction. Returns the run that committed it before.

        If the earlier run is in doubt, recovery resolves it first. Errors: OperationalError if another run holds the
        transaction_id and does not end; ProgrammingError if the earlier run had other data or was of a later batch.
        """
        cursor = connection.cursor()
        self._records.create(self.source, cursor)
        claimed, earlier = self._insert(cursor)
        return self._checked(earlier, claimed=claimed)

    def earlier_run(self) -> EarlierRun | None:
        """The committed run of the transaction_id, if any; claims nothing. ProgrammingError as by `claim`."""
        with closing(self.source.connect()) as connection:
            earlier = self._records.read(connection.cursor(), self.transaction_id, self.target)
        if earlier is not None:
            self._require_same(earlier)
        return earlier

    def _require_same(self, earlier: EarlierRun) -> None:
        if earlier.batch != self.batch:
            raise self._other_work(earlier, f"this is {'no batch' if self.batch is None else f'batch {self.batch}'}")
        if (earlier.plan, earlier.mode) != (self.plan, self.mode):
            what = "its plan was different, or its files were" if self.batch is None else _OTHER_BATCH
            raise self._other_work(earlier, what)

    def _in_progress(self) -> OperationalError:
        return OperationalError(
            f"{self.gtrid}: another run of transaction_id={self.transaction_id!r} is writing {self.target} now, or it "
            "is in doubt and its process is still alive, or another node recovers it: `txpool-recovery list` shows "
            "what is in doubt. Nothing was written, do it again later"
        )

    def require_partitions(self, connection: PEP249Connection, partitions: int) -> None:
        """Record the number of partitions that commit separately. ProgrammingError if an earlier run had another."""
        recorded = self._records.keep(connection.cursor(), self.transaction_id, self.target, partitions)
        if recorded != partitions:
            raise ProgrammingError(
                f"transaction_id={self.transaction_id!r} has begun to write {self.target} in {recorded} partitions, "
                f"and now there are {partitions}: a rerun needs the same partitions. Nothing was written."
            )

    def require_same(self, earlier: EarlierRun, df: DataFrame) -> None:
        """ProgrammingError unless the earlier run has committed all rows of the DataFrame.

        It has not if only some partitions have committed, with atomicity='partition'. Rows are counted if the plan does
        not identify the data.
        """
        if earlier.rows is None:
            raise ProgrammingError(
                f"transaction_id={self.transaction_id!r} has written a part of {self.target}, with "
                "atomicity='partition': finish the write the same way. Nothing was written."
            )
        if must_count(df):
            self.require_rows(earlier, df.count())

    def require_rows(self, earlier: EarlierRun, rows: int) -> None:
        """ProgrammingError if the earlier run has written another number of rows."""
        if earlier.rows is not None and rows != earlier.rows:
            raise self._other_work(earlier, f"there are {rows} rows now")

    def _other_work(self, earlier: EarlierRun, why: str) -> ProgrammingError:
        if earlier.batch is not None:
            return ProgrammingError(
                f"batch {earlier.batch} of stream {self.transaction_id!r} was written to {self.target} already, by "
                f"{earlier.gtrid}: {why}. Go on with the checkpoint and the code of that stream, or give a stream of "
                "other data a name of its own. Nothing was written."
            )
        written = "a part of its" if earlier.rows is None else earlier.rows
        return ProgrammingError(
            f"transaction_id={self.transaction_id!r} has written {written} rows into {self.target} already, by "
            f"{earlier.gtrid} (mode {earlier.mode}), of other data: {why}. Give this write a transaction_id of its "
            "own. Nothing was written."
        )


def must_count(df: DataFrame) -> bool:
    """Whether the rows have to be counted to compare two runs, since the DataFrame reads no files with a path."""
    return not df.inputFiles()


def fingerprint(df: DataFrame, *, by_file: bool = False) -> str:
    """A digest of a DataFrame's schema, its plan, and the folders that it reads.

    With `by_file`, of each file as well, by its name, length and time of modification: if a rerun goes on with a
    part of the data, the rest must be the same.
    """
    plan = _VOLATILE.sub("", df._jdf.queryExecution().analyzed().toString())
    files = df.inputFiles()
    folders = sorted({str(PurePosixPath(file).parent) for file in files})
    read = [df.schema.json(), plan, *folders, *(_described(df, files) if by_file else ())]
    return hashlib.sha256("\n".join(read).encode()).hexdigest()


def _described(df: DataFrame, files: Sequence[str]) -> list[str]:
    """Each file with its length and its time of modification, as the file system has them now."""
    context = df.sparkSession.sparkContext
    runtime: Any = context._jvm
    configuration = context._jsc.hadoopConfiguration()
    described = []
    for file in sorted(files):
        path = runtime.org.apache.hadoop.fs.Path(runtime.java.net.URI(file))
        status = path.getFileSystem(configuration).getFileStatus(path)
        described.append(f"{file} {status.getLen()} {status.getModificationTime()}")
    return described
