"""The "txpool" format: implements Spark's Python Data Source API, and registers the format with a session.

Spark runs the planner, the tasks and the commit in Python processes of its own. These send requests to a server in the
driver's process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from txpool.errors import NotSupportedError
from txpool.jobs.properties import open_transactions, publish
from txpool.locks import Lock
from txpool.spark.commit.session import require_classic, warn_of_risks
from txpool.spark.source.committer import WriteCommitter
from txpool.spark.source.driver_server import DriverServer, ask_driver
from txpool.spark.source.jdbc_reading import refuse_reading
from txpool.spark.source.partition_writer import PartitionCommitMessage, write_partition
from txpool.spark.source.plan import WritePlan, plan_write
from txpool.tm.ambient import current


@dataclass(frozen=True, slots=True)
class _PlanWrite:
    options: dict[str, str]
    schema: StructType
    overwrite: bool
    streaming: bool


@dataclass(frozen=True, slots=True)
class _Read:
    options: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Commit:
    plan: WritePlan
    messages: Sequence[PartitionCommitMessage]


@dataclass(frozen=True, slots=True)
class _Abort:
    plan: WritePlan
    messages: Sequence[PartitionCommitMessage | None]


class Format(DataSource):
    """The data source behind `format("txpool")` of `df.write` and `df.writeStream`; it does not read."""

    #: The address of the driver's server.
    address: str

    @classmethod
    def name(cls) -> str:
        return "txpool"

    def schema(self) -> NoReturn:
        ask_driver(self.address, _Read({**self.options}))
        raise AssertionError("the driver refuses every read")

    def reader(self, schema: StructType) -> NoReturn:
        self.schema()

    def streamReader(self, schema: StructType) -> NoReturn:
        self.schema()

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        return self._writer(schema, overwrite, streaming=False)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Writer:
        return self._writer(schema, overwrite, streaming=True)

    def _writer(self, schema: StructType, overwrite: bool, *, streaming: bool) -> Writer:
        return Writer(
            self.address, ask_driver(self.address, _PlanWrite({**self.options}, schema, overwrite, streaming))
        )


class Writer(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """One write. Spark pickles it: it is planned in one process, writes in tasks, and commits in another process.

    For a stream, Spark plans again for each batch.
    """

    def __init__(self, address: str, plan: WritePlan) -> None:
        self._address = address
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_partition(self._plan, iterator)

    def commit(self, messages: list[Any], batchId: int | None = None) -> None:
        ask_driver(self._address, _Commit(self._plan, messages))

    def abort(self, messages: list[Any], batchId: int | None = None) -> None:
        ask_driver(self._address, _Abort(self._plan, messages))


class _DriverService:
    """Answers the requests of Spark's processes with the datasources and transactions of this process."""

    def __init__(self, session: SparkSession) -> None:
        self.pid = os.getpid()
        self.context = session.sparkContext
        self._committer = WriteCommitter(session)
        publish(current())
        self.server = DriverServer(self._answer)

    def close(self) -> None:
        """Stop the server, because another SparkContext takes its place."""
        self.server.close()

    def _answer(self, request: object) -> Any:
        match request:
            case _PlanWrite(options, schema, overwrite, streaming):
                warn_of_risks(self.context)
                others = () if streaming else open_transactions()
                return self._committer.add_plan(plan_write(options, schema, overwrite, others, streaming=streaming))
            case _Read(options):
                raise refuse_reading(options)
            case _Commit(plan, messages):
                self._committer.commit(plan, messages)
            case _Abort(plan, messages):
                self._committer.abort(plan, messages)
        return None


_service: _DriverService | None = None
_registering = Lock()


def register(spark: SparkSession) -> None:
    """Make `format("txpool")` known to a session; may be called again.

    A write by the format is a part of the transaction that is ambient in the thread which starts it. Without one, the
    write is a transaction of its own. NotSupportedError for Spark Connect.
    """
    global _service
    require_classic(spark, "register()")
    if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() != "true":
        raise NotSupportedError(
            'format("txpool") needs a thread in Java for each thread in Python: leave PYSPARK_PIN_THREAD as it is. '
            "Nothing was done"
        )
    with _registering:
        if _service is None or _service.pid != os.getpid() or _service.context is not spark.sparkContext:
            if _service is not None:
                _service.close()
            _service = _DriverService(spark)
    spark.dataSource.register(_format_at(_service.server.address))


def _format_at(server_address: str) -> type[Format]:
    """A local class, which Spark pickles by value, so that its processes have the address."""

    class Registered(Format):
        address = server_address

    return Registered
