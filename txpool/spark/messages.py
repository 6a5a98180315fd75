"""write_messages(): a Spark job whose tasks send the rows of a DataFrame within the driver's ambient transaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txpool.datasource import Source
from txpool.errors import ProgrammingError
from txpool.idempotency.once import RecordIn
from txpool.messages.session import MessageSession, session
from txpool.spark.partitions import PartitionsReport, run_partitions
from txpool.spark.table.idempotent_job import JobId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_VALUE = ("binary", "string")
_COLUMNS = {"value": _VALUE, "key": _VALUE, "headers": ("map<string,string>",)}


@dataclass(frozen=True, slots=True)
class _Send:
    """Sends the rows of a partition. Spark pickles it: the source's settings travel, with references unresolved."""

    source: Source

    def __call__(self, rows: Iterator[Any]) -> None:
        to = session(self.source)
        for row in rows:
            found = row.asDict()
            key = found.get("key")
            text = key.decode("utf-8", "surrogateescape") if isinstance(key, bytes | bytearray) else key
            to.send(found["value"], key=text, headers=found.get("headers"))


def write_messages(
    df: DataFrame,
    target: str | Path | Source | MessageSession,
    *,
    transaction_id: str | None = None,
    record_in: RecordIn | None = None,
) -> PartitionsReport:
    """Send each row as a message, from the tasks of a Spark job, as a part of the ambient transaction.

    `target` is a session, as for `txpool.session()`. The column `value` is the body, binary or string; `key` (binary or
    string) and `headers` (map<string,string>) may be there, and no others. The messages can be received once the
    transaction has committed. Those of a partition wait in the memory of its task until it prepares.

    A topic of Kafka needs `prepared.owners = any` in its file. If its broker ends prepared transactions by itself, the
    transaction may take a third of the broker's timeout, of which a job is a part: one with a longer timeout is
    refused before the job, and one without a timeout gets that one, at which the job is cancelled.

    `transaction_id` and `record_in` are as in foreach_partition(). Errors: as there, and ProgrammingError for columns
    that are none of these, or a timeout that is too long.
    """
    to = session(target)
    require_columns(df)
    return run_partitions(JobId("write_messages", transaction_id, record_in), df, _Send(to.source), [to.prepares_in])


def require_columns(df: DataFrame) -> None:
    """ProgrammingError unless the columns of a DataFrame are those of messages."""
    types = dict(df.dtypes)
    wrong = [f"{name} ({kind})" for name, kind in types.items() if kind not in _COLUMNS.get(name, ())]
    wrong += [f"{name} ({kind}) twice" for name, kind in types.items() if df.columns.count(name) > 1]
    if "value" not in types or wrong:
        what = f"and has {', '.join(wrong)}" if wrong else "and has no column value"
        raise ProgrammingError(
            "write_messages() sends the columns value and key (binary or string) and headers (map<string,string>) of "
            f"a DataFrame, {what}. Select and cast what is to be sent. Nothing was sent"
        )
