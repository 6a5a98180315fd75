"""once_per_batch(): each batch of a streaming query is one transaction, and written once, whatever is begun again.

A batch that was interrupted comes again under its number and with its offsets, to a query that was started on the same
checkpoint. A record, which the batch's own transaction commits, says whether it has been here.
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
from txpool.spark.commit.session import context_of
from txpool.spark.commit.task_datasources import datasources_for
from txpool.spark.table.idempotent_write import IdempotentWrite
from txpool.tm.ambient import current
from txpool.tm.scope import transactional

logger = logging.getLogger("txpool")

#: What the records of this room are called, where those of write_table() have a table and a mode.
_TARGET = "foreachBatch"
_QUERY = "sql.streaming.queryId"


def once_per_batch(
    write: Callable[[DataFrame, int], object], datasource: str | Path | DataSource, *, name: str | None = None
) -> Callable[[DataFrame, int], None]:
    """A function for foreachBatch(): it runs `write(batch_df, batch_id)` as one transaction, once for each batch.

    Whatever `write` does by write_table(), foreach_partition() and txpool.connect() has one outcome, and so has the
    record of the batch, a row in `datasource` (driver=psycopg). A batch that has been committed and comes again, since
    the driver was lost before Spark knew, is recognised, and `write` is not called. One that is in doubt is settled
    first. The stream goes by its query's id, which lives in the checkpoint; with a `name` of yours, a query on another
    checkpoint is the same stream, as long as its batches are cut the same.

    Errors fail the query, and come again in the text of its StreamingQueryException: what `write` raises, after which
    nothing of the batch stays; ProgrammingError where a batch of the same number had other data, or a later one has
    been written; OperationalError where an earlier run has not ended; those of a commit. After TransactionInDoubt,
    start the query again. Here: ConfigurationError; NotSupportedError for another driver, and for Spark Connect.
    """
    if is_remote():
        raise NotSupportedError(
            "once_per_batch() needs a driver of its own, and Spark Connect has none here: use a classic session "
            "(SparkSession.builder.master(…), or spark-submit). Nothing was done"
        )
    source = find(datasource)
    if not source.resource_manager.spark_tasks:
        raise NotSupportedError(
            f"the record of a batch is kept in PostgreSQL, and {source.name} is driver={source.driver}: name another "
            "datasource; this one may take part in what the function writes. Nothing was done"
        )
    return _OncePerBatch(write, source, name)


@dataclass(frozen=True, slots=True)
class _OncePerBatch:
    write: Callable[[DataFrame, int], object]
    source: DataSource
    name: str | None

    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        query_id = context_of(batch_df, "once_per_batch()").getLocalProperty(_QUERY)
        if query_id is None:
            raise ProgrammingError(
                "no streaming query is at work in this thread: pass the function to writeStream.foreachBatch(), and "
                "leave PYSPARK_PIN_THREAD as it is. Nothing was written"
            )
        datasources_for([self.source], self.write)  # so that recovery knows them, should an earlier run be in doubt
        told = [batch_df.schema.json(), offsets(batch_df.sparkSession, query_id, batch_id)]
        plan = hashlib.sha256("\n".join(told).encode()).hexdigest()
        # Of its own, whatever an earlier batch has left open in this thread, which serves them all.
        transactional("requires_new")(self._once)(batch_df, batch_id, self.name or query_id, plan)

    def _once(self, batch_df: DataFrame, batch_id: int, stream: str, plan: str) -> None:
        transaction = current()
        assert transaction is not None  # noqa: S101 - it is begun above
        replay = IdempotentWrite(self.source, stream, _TARGET, transaction.gtrid, _TARGET, plan, batch_id)
        with closing(self.source.connect()) as connection:
            earlier = replay.claim(connection)
        if earlier is None:
            self.write(batch_df, batch_id)
        else:
            logger.info("batch %s of stream %s was committed already, as %s", batch_id, stream, earlier.gtrid)


def offsets(session: SparkSession, query_id: str, batch_id: int) -> str:
    """What the batch that a query runs now is made of: the same text each time that it runs, and for no other data.

    That is, for each source of the stream, from where to where it is read, or which files are. Errors: ProgrammingError
    where the query is at no such batch.
    """
    uuid = session._jvm.java.util.UUID.fromString(query_id)  # type: ignore[union-attr]
    # Each batch has a session of its own, which knows no queries; what sessions share does.
    query = session._jsparkSession.sharedState().activeStreamingQueries().get(uuid)
    batch = query and query.lastExecution()
    if batch is None or batch.currentBatchId() != batch_id:
        raise ProgrammingError(f"query {query_id} is not at batch {batch_id} now, and only of that one more is known")
    return json.dumps(sorted(_read(query.offsetLog(), batch)))


def _read(log: Any, batch: Any) -> Iterator[list[str]]:
    """Of each source that the batch reads something of; a table that is joined may be another tomorrow."""
    leaves = batch.analyzed().collectLeaves()
    for leaf in map(leaves.apply, range(leaves.size())):
        kind = leaf.getClass().getSimpleName()
        if not leaf.isStreaming() or kind == "LocalRelation":
            continue
        if kind == "StreamingDataSourceV2ScanRelation":
            yield [leaf.startOffset().get().json(), leaf.endOffset().get().json()]
        elif kind == "LogicalRelation" and leaf.relation().getClass().getSimpleName() == "HadoopFsRelation":
            yield sorted(leaf.relation().inputFiles())
        else:  # a source of the older kind says nothing of itself here
            number = batch.currentBatchId()
            yield [log.get(n).get().toString() for n in (number - 1, number) if n >= 0]
