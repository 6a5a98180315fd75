"""The plan of a write by the "txpool" format: made in the driver's process, plain data for those that plan, write and
commit.

When it is made, nobody can tell which transaction the write will be a part of: its tasks are told by their job. So the
names of what they leave in the database are made there, with this write's own number.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from contextvars import Context
from dataclasses import asdict, dataclass
from typing import Any, LiteralString

from pyspark.sql import types as T  # noqa: N812 - as every user of Spark knows it

from txpool.config.properties import nearest
from txpool.datasource import DataSource, find
from txpool.errors import NotSupportedError, ProgrammingError
from txpool.resources.base import LocationKey
from txpool.resources.postgresql.staging import StagingTable
from txpool.spark.commit.locations import note_locations
from txpool.spark.commit.task_datasources import TaskDatasources
from txpool.spark.commit.tracing import NOT_TRACED, TaskTrace, planned_trace
from txpool.spark.table.copying import PartitionCopy, copy_into, copy_staged
from txpool.spark.table.merge import StagingMerge
from txpool.spark.table.privileges import require_privileges
from txpool.spark.table.target import Target, read_target, require_unique, why_staged
from txpool.spark.types.columns import Column, Layout, definitions, pair
from txpool.tm.manager import get_manager
from txpool.tm.transaction import Transaction

OPTIONS = ("datasource", "dbtable", "upsertKeys", "transactionId", "strategy", "createTable")
#: What Spark itself is told among a stream's options.
_OF_SPARK = ("checkpointlocation", "queryname")
_STRATEGIES = ("auto", "direct", "staged")
#: The format's writes are counted from here for the whole process, above those that a transaction counts itself.
FIRST = 100_000
_numbers = itertools.count(FIRST)
# Where neither a unique value nor a trigger (a foreign key is one) can make one task wait for another, or the driver.
_INDEPENDENT: LiteralString = """
    select relkind = 'r' and not relhastriggers
        and not exists (select from pg_index where indrelid = c.oid and (indisunique or indisexclusion))
    from pg_class c where oid = to_regclass(%s)
"""


@dataclass(frozen=True, slots=True)
class WrittenField:
    """A column of the DataFrame that is written."""

    index: int
    #: An instant that the table keeps as the session's clock shows it.
    as_local: bool


@dataclass(frozen=True, slots=True)
class WritePlan:
    """How a DataFrame's rows get into a table."""

    #: The transaction of its own that it has where there is no other.
    gtrid: str
    number: int
    #: What the user calls it, and its name.
    datasource: str
    source: str
    datasources: TaskDatasources
    #: Where its tasks may prepare, and as whom.
    locations: frozenset[LocationKey]
    target: Target
    fields: tuple[WrittenField, ...]
    layout: Layout
    mode: str
    keys: tuple[str, ...]
    #: Of a table that is to be created: its columns.
    created: tuple[tuple[str, str], ...]
    #: direct, where a slot is free for it, or staged.
    strategy: str
    #: Whoever asked for `direct` does not want it staged.
    strategy_required: bool
    transaction_id: str | None
    #: What it is a plan of; the same for two plans of the same write.
    digest: str
    #: Transactions that were open in the driver's process.
    open: tuple[str, ...]
    #: What all plans of one stream have in common, and no others; empty for a batch.
    stream: str
    #: Of the transaction of its own, until that begins.
    trace: TaskTrace = NOT_TRACED

    def staging(self, gtrid: str) -> StagingTable:
        return StagingTable(gtrid, self.number)

    def direct(self) -> PartitionCopy:
        """What a task does that has a slot."""
        return copy_into(self.source, self.target.name, self.layout)

    def staged(self, gtrid: str) -> PartitionCopy:
        """What a task does that has none."""
        return copy_staged(self.source, self.staging(gtrid).name, self.layout, f"{gtrid}/{self.number}")

    def merge(self, gtrid: str) -> StagingMerge:
        """What the driver does with staged rows."""
        staging = self.staging(gtrid).name
        return StagingMerge(gtrid, self.target, self.layout, self.mode, self.keys, staging, self.created)


def plan_write(
    options: Mapping[str, str],
    schema: T.StructType,
    overwrite: bool,
    open_transactions: Sequence[Transaction],
    *,
    streaming: bool,
) -> WritePlan:
    """In the driver's process. ProgrammingError where options, table, columns or types do not fit."""
    given = _checked(options)
    if get_manager().log is None:
        get_manager().new_transaction().adopt(
            (), late_branches=False
        )  # which is an error, and shows the lines to write
    source = find(given["datasource"])
    if not source.resource_manager.spark_tasks:
        raise NotSupportedError(
            f"{source.name} (driver={source.driver}) {source.resource_manager.why_no_tasks}, which tasks cannot share: "
            'the "txpool" format writes to PostgreSQL, and write_table() into such a file. Nothing was done'
        )
    keys = tuple(key.strip() for key in given.get("upsertKeys", "").split(",") if key.strip())
    mode = "overwrite" if overwrite else "upsert" if keys else "append"
    if overwrite and keys:
        raise ProgrammingError('upsertKeys go with mode("append"), which then updates the rows that are there')
    new = definitions(schema.fields) if given.get("createTable", "false").lower() == "true" else None
    target = read_target(source, given["dbtable"], new, keys)
    pairs, layout = pair(schema.fields, target.columns, target.name)
    require_unique(target, keys, layout.names)
    require_privileges(source, target, layout.names, mode=mode, keys=keys, strategy=given.get("strategy", "auto"))
    strategy = _strategy(given.get("strategy", "auto"), source, target, mode, open_transactions)
    gtrid = get_manager().new_gtrid()
    told = {name: value for name, value in given.items() if name != "strategy"}
    return WritePlan(
        gtrid,
        next(_numbers),
        given["datasource"],
        source.name,
        TaskDatasources.pack([source], {source.name: source}),
        note_locations(get_manager().log, [source]) if strategy == "direct" else frozenset(),
        target,
        tuple(_field(schema, field, column, target.name) for field, column in pairs),
        layout,
        mode,
        keys,
        tuple(new or ()),
        strategy,
        given.get("strategy") == "direct",
        given.get("transactionId"),
        _digest([told, mode, schema.json(), asdict(layout)]),
        tuple(each.gtrid for each in open_transactions),
        _digest([sorted(options.items()), schema.json()]) if streaming else "",
        planned_trace(gtrid, own=not open_transactions),
    )


def _digest(told: object) -> str:
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _checked(options: Mapping[str, str]) -> dict[str, str]:
    """The options by the names that we give them. Spark does not tell capitals apart."""
    known = {name.lower(): name for name in OPTIONS}
    given: dict[str, str] = {}
    for name, value in options.items():
        if name.lower() in _OF_SPARK:
            continue
        if name.lower() not in known:
            raise ProgrammingError(f'the "txpool" format has no option {name}: {nearest(name, OPTIONS)}')
        given[known[name.lower()]] = value
    for name in ("datasource", "dbtable"):
        if not given.get(name):
            raise ProgrammingError(f'the "txpool" format needs .option("{name}", …). Nothing was done')
    if given.get("strategy", "auto") not in _STRATEGIES:
        raise ProgrammingError(f"strategy is {given['strategy']!r}: it is one of {', '.join(_STRATEGIES)}")
    return given


def _strategy(
    wanted: str, source: DataSource, target: Target, mode: str, open_transactions: Sequence[Transaction]
) -> str:
    """Direct only where a late or lost attempt can keep nobody waiting: the format sees nothing of its job."""
    why = why_staged(source, target, mode)
    if why is None and any(each.works_in(source.name) for each in open_transactions):
        why = f"a transaction works in {source.name} on the driver, and tasks might wait for its locks"
    if why is None and not Context().run(_is_independent, source, target):
        why = f"{target.name} has a unique index, a foreign key or a trigger, at which a retry might wait for ever"
    if why is not None and wanted == "direct":
        raise ProgrammingError(
            f"strategy=direct cannot be: {why}. Leave it out, or use write_table(). Nothing was done"
        )
    return "staged" if why is not None or wanted == "staged" else "direct"


def _is_independent(source: DataSource, target: Target) -> bool:
    with closing(source.connect()) as connection:
        (found,) = connection.cursor().execute(_INDEPENDENT, [target.name]).fetchone()
        return bool(found)


def _field(schema: T.StructType, field: T.StructField, column: Column, table: str) -> WrittenField:
    kind: Any = field.dataType
    local = column.type == "timestamp" and isinstance(kind, T.TimestampType)
    if column.array and column.type == "timestamp" and isinstance(kind.elementType, T.TimestampType):
        remedy = "cast it to array<timestamp_ntz>"
    elif (
        column.type in ("json", "jsonb")
        and not column.array
        and isinstance(kind, T.StructType | T.MapType | T.ArrayType | T.VariantType)
    ):
        remedy = f'make it text by to_json("{field.name}")'
    else:
        return WrittenField(schema.names.index(field.name), local)
    raise ProgrammingError(
        f'column {field.name} is {kind.simpleString()}, which the "txpool" format does not convert for '
        f"{table}.{column.name}: {remedy}, or use write_table(). Nothing was done"
    )
