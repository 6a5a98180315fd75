"""What runs on the executor: one partition, as a subordinate transaction that ends prepared."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from pyspark import CPickleSerializer, TaskContext

from txpool.datasource import DataSource
from txpool.errors import ConfigurationError, ProgrammingError
from txpool.resources.base import BranchRecord, LocationKey
from txpool.spark.commit.attempts import PartitionResult, earlier_attempt
from txpool.spark.commit.listing import list_attempts
from txpool.spark.commit.slots import explain_slots
from txpool.spark.commit.task_datasources import TaskDatasources
from txpool.spark.commit.tracing import TaskTrace, ambient_trace, traced
from txpool.tm.manager import _ambient
from txpool.tm.subordinate import Subordinate
from txpool.tracing import Trace

#: Spark's own, of what its jobs return.
_SERIALIZER: Any = CPickleSerializer()


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """What the driver sends to every partition: plain data, the user's function, and no secret."""

    gtrid: str
    write: int
    #: How many there are, where that is known when the task is packed.
    partitions: int | None
    function: Callable[[Iterator[Any]], object]
    datasources: TaskDatasources
    #: Where it may prepare, and as whom: what the driver has noted in the log.
    locations: frozenset[LocationKey]
    #: Counts rows and bytes of a partition that an earlier attempt has written; what `function` returns is that, too.
    measure: Callable[[Iterator[Any]], tuple[int, int]] | None = None
    #: That of the ambient transaction where it is packed.
    trace: TaskTrace = field(default_factory=ambient_trace)
    #: What `function` yields travels back. Then nothing of an earlier attempt's is adopted: its yields are lost.
    yielding: bool = False

    def __call__(self, partition: int, rows: Iterator[Any]) -> Iterator[dict[str, Any]]:
        """Write the partition and prepare it, or adopt what an earlier attempt has prepared; one packed result."""
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark runs this
        attempt = context.taskAttemptId()
        here, missing = self.datasources.unpack()
        numbers = {"write": self.write, "partition": partition, "attempt": attempt}
        try:
            with traced(self.trace, self.gtrid, **numbers) as trace:
                adopts = context.attemptNumber() > 0 and not self.yielding
                result = self._adopted(partition, rows, here.values()) if adopts else None
                if result is None:
                    result = self._written(partition, attempt, rows, here, trace)
        except Exception as error:
            error.add_note(f"This was partition {partition} (task attempt {attempt}) of {self.gtrid}.")
            if isinstance(error, ConfigurationError):
                for name, why in missing.items():
                    error.add_note(f"The driver's datasource {name} is not here: {why}")
            raise
        return iter([result.pack()])

    def _adopted(
        self, partition: int, rows: Iterator[Any], datasources: Iterable[DataSource]
    ) -> PartitionResult | None:
        """What an earlier attempt has prepared: to do its work again would wait for its locks for ever."""
        listing = list_attempts(datasources, gtrid=self.gtrid, write=self.write)
        earlier = earlier_attempt(listing.attempts, partition)
        if earlier is None:
            return None
        size = self.measure(rows) if self.measure is not None else (0, 0)
        return PartitionResult(partition, earlier.number, earlier.records, {}, size)

    def _written(
        self, partition: int, attempt: int, rows: Iterator[Any], here: dict[str, DataSource], trace: Trace | None
    ) -> PartitionResult:
        subordinate = Subordinate(
            self.gtrid, write=self.write, partition=partition, attempt=attempt, places=self.locations
        )
        subordinate.trace = trace
        ambient = _ambient.set(subordinate)
        try:
            produced = self.function(rows)
            yields = None
            if self.yielding:
                yields = _pickled(produced)
            elif isinstance(produced, Iterator):  # a generator works only while somebody asks it for more
                deque(produced, maxlen=0)
            # The driver must be able to load what it does not know: better found out before anything is prepared.
            used = cast("list[DataSource]", subordinate.datasources)
            settings = {it.name: it.settings.serialized() for it in used if it is not here.get(it.name)}
            records = self._prepared(subordinate)
        except BaseException:
            if not subordinate.ended:
                subordinate.rollback()
            raise
        finally:
            _ambient.reset(ambient)
        size = cast("tuple[int, int]", produced) if self.measure is not None else (0, 0)
        return PartitionResult(partition, attempt, tuple(records), settings, size, yields)

    def _prepared(self, subordinate: Subordinate) -> list[BranchRecord]:
        try:
            return subordinate.prepare()
        except Exception as error:
            explain_slots(error, self.partitions)
            raise


def _pickled(produced: object) -> bytes:
    """All that a function yields, before anything is prepared: some of it may not travel."""
    if not isinstance(produced, Iterable):
        raise ProgrammingError(
            f"map_partitions() returns what its function yields, and this one has returned {type(produced).__name__}: "
            "let it yield, or return a list; foreach_partition() is for functions that only write"
        )
    return cast(bytes, _SERIALIZER.dumps(list(produced)))


def unpickled(yields: bytes) -> list[Any]:
    """On the driver: what a partition's function has yielded."""
    return cast("list[Any]", _SERIALIZER.loads(yields))
