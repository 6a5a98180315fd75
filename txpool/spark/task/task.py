"""The function that a Spark task runs: it writes one partition in a subordinate transaction and prepares it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from pyspark import CPickleSerializer, TaskContext

from txpool.datasource import Source
from txpool.errors import ConfigurationError, ProgrammingError, require_done
from txpool.resources.base import BranchRecord, LocationKey
from txpool.spark.commit.attempts import PartitionResult, earlier_attempt, refusal
from txpool.spark.commit.listing import list_attempts
from txpool.spark.commit.slots import explain_slots
from txpool.spark.task.datasources import TaskDatasources
from txpool.spark.task.input import TaskInput
from txpool.spark.task.tracing import TaskTrace, ambient_trace, traced
from txpool.sql.characteristics import UNSPECIFIED, Characteristics
from txpool.tm.ambient import ambient_variable
from txpool.tm.subordinate import Subordinate
from txpool.tracing import Trace

#: The serializer that Spark itself uses for results of jobs.
_SERIALIZER: Any = CPickleSerializer()


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """Spark pickles this and calls it for every partition. It holds plain data, the user's function, and no secret."""

    gtrid: str
    write: int
    #: The number of partitions, for an error's text; None if it is not known when the task is pickled.
    partitions: int | None
    function: Callable[[Iterator[Any]], object]
    datasources: TaskDatasources
    #: Where the task may prepare, and under which role: the locations that the driver has noted in the log.
    locations: frozenset[LocationKey]
    #: Counts rows and bytes of a partition that an earlier attempt has written. With it `function` returns both, too.
    measure: Callable[[Iterator[Any]], tuple[int, int]] | None = None
    #: The trace of the transaction that is ambient when the task is created.
    trace: TaskTrace = field(default_factory=ambient_trace)
    #: The driver collects what `function` yields. A retry then adopts no earlier attempt, whose yields are lost.
    yielding: bool = False
    #: How the transaction's local transactions begin, on the executors, too.
    characteristics: Characteristics = UNSPECIFIED

    def __call__(self, partition: int, rows: Iterator[Any]) -> Iterator[dict[str, Any]]:
        """Write the partition and prepare it, or adopt an earlier attempt. Returns one packed PartitionResult."""
        context = TaskContext.get()
        assert context is not None
        attempt = context.taskAttemptId()
        datasources, unavailable = self.datasources.unpack()
        numbers = {"write": self.write, "partition": partition, "attempt": attempt}
        try:
            with traced(self.trace, self.gtrid, **numbers) as trace:
                adopts = context.attemptNumber() > 0 and not self.yielding
                result = self._adopt_earlier(partition, rows, datasources.values()) if adopts else None
                if result is None:
                    result = self._write(partition, attempt, rows, datasources, trace)
        except Exception as error:
            error.add_note(f"This was partition {partition} (task attempt {attempt}) of {self.gtrid}.")
            if isinstance(error, ConfigurationError):
                for name, why in unavailable.items():
                    error.add_note(f"The driver's datasource {name} is not available in this task: {why}")
            raise
        return iter([result.pack()])

    def _adopt_earlier(
        self, partition: int, rows: Iterator[Any], datasources: Iterable[Source]
    ) -> PartitionResult | None:
        """The result of an earlier attempt that is prepared, if any.

        To do its work again would mean to wait for its locks, which are held until the transaction ends.
        """
        listing = list_attempts(datasources, gtrid=self.gtrid, write=self.write)
        earlier = earlier_attempt(listing.attempts, partition)
        if earlier is None:
            return None
        size = self.measure(rows) if self.measure is not None else (0, 0)
        return PartitionResult(partition, earlier.number, earlier.records, {}, size)

    def _write(
        self, partition: int, attempt: int, rows: Iterator[Any], datasources: dict[str, Source], trace: Trace | None
    ) -> PartitionResult:
        subordinate = Subordinate(
            self.gtrid,
            write=self.write,
            partition=partition,
            attempt=attempt,
            locations=self.locations,
            characteristics=self.characteristics,
        )
        subordinate.trace = trace
        ambient = ambient_variable.set(subordinate)
        task_input = TaskInput(rows)
        try:
            produced = self.function(task_input.rows())
            yields = None
            require_done("the function of a partition", produced, iterated=True)
            if self.yielding:
                yields = _pickled(produced)
            elif isinstance(produced, Iterator):  # a generator runs only while it is iterated
                deque(produced, maxlen=0)
            # The driver needs the settings of datasources that it does not know. An error is raised before the prepare.
            used = [it for it in subordinate.datasources if isinstance(it, Source)]
            settings = {it.name: it.settings.serialized() for it in used if it is not datasources.get(it.name)}
            task_input.require_whole()
            records = self._prepare(subordinate)
        except BaseException:
            if not subordinate.ended:
                subordinate.rollback()
            raise
        finally:
            ambient_variable.reset(ambient)
        size = cast("tuple[int, int]", produced) if self.measure is not None else (0, 0)
        return PartitionResult(partition, attempt, tuple(records), settings, size, yields)

    def _prepare(self, subordinate: Subordinate) -> list[BranchRecord]:
        try:
            return subordinate.prepare()
        except Exception as error:
            explain_slots(error, self.partitions)
            raise


def _pickled(produced: object) -> bytes:
    """The pickled yields of a function. Called before the prepare, since a value may fail to pickle."""
    if not isinstance(produced, Iterable):
        raise ProgrammingError(
            f"map_partitions() collects what its function yields, and this one has returned {type(produced).__name__}: "
            "let it yield, or return a list; foreach_partition() is for functions that only write"
        )
    return cast(bytes, _SERIALIZER.dumps(list(produced)))


def results_of(
    write: Callable[[int, Iterator[Any]], Iterator[dict[str, Any]]], partition: int, rows: Iterator[Any]
) -> Iterator[dict[str, Any]]:
    """The packed results of a task's function, which does all its work when it is called; or its `refusal`."""
    try:
        return write(partition, rows)
    except ConfigurationError as error:
        return iter([refusal(error)])


def unpickled(yields: bytes) -> list[Any]:
    """The values that a partition's function has yielded. Called on the driver."""
    return cast("list[Any]", _SERIALIZER.loads(yields))
