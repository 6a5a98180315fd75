"""once_per_batch(): writes each batch of a streaming query in one transaction, and only once.

When a query is restarted on its checkpoint, Spark repeats an interrupted batch under the same number and with the same
offsets. A record, which the batch's own transaction writes, shows whether the batch has been committed.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote

from txpool.datasource import DataSource, find
from txpool.errors import NotSupportedError, ProgrammingError
from txpool.resources.parts import NO_SPARK
from txpool.spark.commit.session import context_of
from txpool.spark.table.idempotent_write import IdempotentWrite
from txpool.spark.task.datasources import datasources_for
from txpool.tm.ambient import current
from txpool.tm.demarcation.transactional import transactional

logger = logging.getLogger("txpool")

#: In the records of batches, this stands in the place of the table and the mode of a write_table().
_TARGET = "foreachBatch"
_QUERY_ID = "sql.streaming.queryId"


def once_per_batch(
    write: Callable[[DataFrame, int], object], datasource: str | Path | DataSource, *, name: str | None = None
) -> Callable[[DataFrame, int], None]:
    """A function for foreachBatch(): it runs `write(batch_df, batch_id)` in one transaction, once for each batch.

    Whatever `write` does by write_table(), foreach_partition() and txpool.connect() has one outcome, and so has the
    record of the batch, a row in `datasource`, which is in PostgreSQL, MariaDB or MySQL (driver psycopg, pymysql or
    mysqlclient). If Spark repeats a committed batch, because the driver was lost before Spark knew of the commit,
    `write` is not called. A batch that is in doubt is resolved first. A stream is known by its query's id, which the
    checkpoint keeps. With a `name`, a query on another checkpoint is the same stream, provided that its batches have
    the same offsets.

    Errors fail the query, and are in the text of its StreamingQueryException: what `write` raises, after which nothing
    of the batch stays; ProgrammingError if a batch of the same number had other data, or a later one has been written;
    OperationalError if an earlier run has not ended; those of a commit. After TransactionInDoubt, start the query
    again. This function itself raises ConfigurationError, and NotSupportedError for another driver or Spark Connect.
    """
    if is_remote():
        raise NotSupportedError(
            "once_per_batch() needs Spark's driver in this process, and Spark Connect has it elsewhere: use a classic "
            "session (SparkSession.builder.master(…), or spark-submit). Nothing was done"
        )
    source = find(datasource)
    if not (source.resource_manager.spark or NO_SPARK).tasks:
        raise NotSupportedError(
            f"the record of a batch is kept in PostgreSQL, MariaDB or MySQL, and {source.name} has "
            f"driver={source.driver}: name another datasource; the function may still write to this one. Nothing was "
            "done"
        )
    return _OncePerBatch(write, source, name)


@dataclass(frozen=True, slots=True)
class _OncePerBatch:
    write: Callable[[DataFrame, int], object]
    source: DataSource
    name: str | None

    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        query_id = context_of(batch_df, "once_per_batch()").getLocalProperty(_QUERY_ID)
        if query_id is None:
            raise ProgrammingError(
                "no streaming query is running in this thread: pass the function to writeStream.foreachBatch(), and "
                "leave PYSPARK_PIN_THREAD as it is. Nothing was written"
            )
        datasources_for([self.source], self.write)  # loads them for recovery, in case an earlier run is in doubt
        compared = [batch_df.schema.json(), offsets(batch_df.sparkSession, query_id, batch_id)]
        plan = hashlib.sha256("\n".join(compared).encode()).hexdigest()
        # A new transaction, even if an earlier batch has left one open in this thread, which runs all batches.
        transactional("requires_new")(self._once)(batch_df, batch_id, self.name or query_id, plan)

    def _once(self, batch_df: DataFrame, batch_id: int, stream: str, plan: str) -> None:
        transaction = current()
        assert transaction is not None
        record = IdempotentWrite(self.source, stream, _TARGET, transaction.gtrid, _TARGET, plan, batch_id)
        with closing(self.source.connect()) as connection:
            earlier = record.claim(connection)
        if earlier is None:
            self.write(batch_df, batch_id)
        else:
            logger.info("batch %s of stream %s was committed already, as %s", batch_id, stream, earlier.gtrid)


def offsets(session: SparkSession, query_id: str, batch_id: int) -> str:
    """A text that identifies the data of the batch that a query is running; the same each time the batch is run.

    It has the start and end offsets of each source, or the files that are read. ProgrammingError if the query is not
    running this batch.
    """
    uuid = session._jvm.java.util.UUID.fromString(query_id)  # type: ignore[union-attr]
    # Each batch has its own session, which knows no queries. The state that all sessions share knows them.
    query = session._jsparkSession.sharedState().activeStreamingQueries().get(uuid)
    batch = query and query.lastExecution()
    if batch is None or batch.currentBatchId() != batch_id:
        raise ProgrammingError(
            f"query {query_id} is not running batch {batch_id} now, and offsets are known of the running batch only"
        )
    return json.dumps(sorted(_offsets_of_sources(query.offsetLog(), batch)))


def _offsets_of_sources(log: Any, batch: Any) -> Iterator[list[str]]:
    """The offsets or files of each streaming source of a batch. Static tables are left out, since they may change."""
    leaves = batch.analyzed().collectLeaves()
    for leaf in map(leaves.apply, range(leaves.size())):
        kind = leaf.getClass().getSimpleName()
        if not leaf.isStreaming() or kind == "LocalRelation":
            continue
        if kind == "StreamingDataSourceV2ScanRelation":
            yield [leaf.startOffset().get().json(), leaf.endOffset().get().json()]
        elif kind == "LogicalRelation" and leaf.relation().getClass().getSimpleName() == "HadoopFsRelation":
            yield sorted(leaf.relation().inputFiles())
        else:  # a source of API version 1 has no offsets in the plan, so they are read from the query's log
            number = batch.currentBatchId()
            yield [log.get(n).get().toString() for n in (number - 1, number) if n >= 0]
