"""The plan of a write by the "txpool" format: made in the driver's process, then sent to planner, tasks and commit.

When a plan is made, it is not known which transaction the write will be a part of: only its job has that as a local
property. So the tasks themselves name their branches and staging tables, by the gtrid of the job and the number in the
plan.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from pyspark.sql import types as T

from txpool.datasource import DataSource, find
from txpool.errors import NotSupportedError, ProgrammingError
from txpool.resources.base import LocationKey
from txpool.resources.parts import NO_SPARK
from txpool.resources.recovery_access import StagingTable
from txpool.spark.commit.before_job import note_locations, settle_earlier_runs
from txpool.spark.source.options import canonical_options
from txpool.spark.table.dialect import Merge, TableDialect, TaskCopy, dialect_of, require_not_alone
from txpool.spark.table.target import Target
from txpool.spark.task.datasources import TaskDatasources
from txpool.spark.task.tracing import NOT_TRACED, TaskTrace, planned_trace
from txpool.spark.types.columns import Column, Layout
from txpool.sql.characteristics import Characteristics
from txpool.tm.manager import get_manager
from txpool.tm.transaction import Transaction

#: The options of a write, and what each says; docs/reference/spark.md is made of it.
OPTIONS = {
    "datasource": "A `.properties` file, or a registered name.",
    "dbtable": "The table.",
    "upsertKeys": "Columns, with commas between them. With mode `append`, a row that has the same keys is updated.",
    "transactionId": "As `transaction_id` of `write_table()`, but other data are told by schema, options and number of "
    "rows alone. Of a stream, a name that outlives its checkpoint.",
    "strategy": "`auto`, `direct` or `staged`. `direct` is possible only if no unique index, foreign key or trigger "
    "can make tasks wait.",
    "createTable": "`true`: a table that is missing is made.",
}
#: Options of a stream that are meant for Spark itself.
_SPARK_OPTIONS = ("checkpointlocation", "queryname")
_STRATEGIES = ("auto", "direct", "staged")
#: The first number of the format's writes, which are counted for the whole process; other writes have lower numbers.
FIRST_NUMBER = 100_000
_numbers = itertools.count(FIRST_NUMBER)


@dataclass(frozen=True, slots=True)
class WrittenField:
    """A column of the DataFrame that is written."""

    index: int
    #: The column is a timestamp with time zone, and is written as the local time in the session's time zone.
    as_local: bool


@dataclass(frozen=True, slots=True)
class WritePlan:
    """How the rows of a DataFrame are written into a table; plain data without a secret."""

    #: The gtrid of the write's own transaction, used if there is no ambient one.
    gtrid: str
    number: int
    #: The option `datasource` as the user has given it.
    datasource: str
    #: The name of that datasource.
    source: str
    datasources: TaskDatasources
    #: Where the tasks may prepare, and under which role.
    locations: frozenset[LocationKey]
    target: Target
    fields: tuple[WrittenField, ...]
    layout: Layout
    mode: str
    keys: tuple[str, ...]
    #: The columns of a table that is to be created, each with its declaration.
    created: tuple[tuple[str, str], ...]
    #: `direct` (as long as slots are free) or `staged`.
    strategy: str
    #: The user asked for `direct`, so tasks must not stage their rows instead.
    strategy_required: bool
    transaction_id: str | None
    #: A digest of the options, the schema and the table; two plans of the same write have the same.
    digest: str
    #: The transactions that were open in the driver's process.
    open_gtrids: tuple[str, ...]
    #: A digest that all plans of one stream have in common; empty if the write is not a stream's.
    stream: str
    #: The trace of the write's own transaction.
    trace: TaskTrace = NOT_TRACED
    #: Of the open transactions that have characteristics of their own, by gtrid.
    characteristics: Mapping[str, Characteristics] = field(default_factory=dict)

    def staging(self, dialect: TableDialect, gtrid: str) -> StagingTable:
        table: StagingTable = dialect.staging_table(gtrid, self.number)
        return table

    def direct(self, dialect: TableDialect) -> TaskCopy:
        """What a task runs that has a prepared slot."""
        return dialect.copy_into(self.source, self.target, self.layout)

    def staged(self, dialect: TableDialect, table: StagingTable) -> TaskCopy:
        """What a task runs that has none."""
        return dialect.copy_staged(self.source, table, self.layout, f"{table.gtrid}/{self.number}")

    def merge(self, source: DataSource, gtrid: str) -> Merge:
        """The statements by which the driver moves the staged rows."""
        dialect = dialect_of(source)
        table = dialect.staging(source).found(self.staging(dialect, gtrid))
        return dialect.merge(
            source, table, self.target, self.layout, mode=self.mode, keys=self.keys, created=self.created
        )


def plan_write(
    options: Mapping[str, str],
    schema: T.StructType,
    overwrite: bool,
    open_transactions: Sequence[Transaction],
    *,
    streaming: bool,
) -> WritePlan:
    """Plan a write, in the driver's process. ProgrammingError if options, table, columns or types do not fit."""
    given = _parse_options(options)
    if len(open_transactions) == 1:  # of several, the task knows which is its own
        open_transactions[0].characteristics.require_writable(open_transactions[0].gtrid, "the format")
    if get_manager().log is None:
        # Raises the error that says how to configure a decision log.
        get_manager().new_transaction().adopt((), late_branches=False)
    source = find(given["datasource"])
    spark = source.resource_manager.spark or NO_SPARK
    if not spark.tasks:
        raise NotSupportedError(
            f'{source.name} (driver={source.driver}) {spark.why_no_tasks}: the "txpool" format '
            "does not write into it. Use write_table(), if that can. Nothing was done"
        )
    require_not_alone(source)
    keys = tuple(key.strip() for key in given.get("upsertKeys", "").split(",") if key.strip())
    mode = "overwrite" if overwrite else "upsert" if keys else "append"
    if overwrite and keys:
        raise ProgrammingError(
            'upsertKeys need mode("append"), which then updates the rows that exist already. Nothing was done'
        )
    dialect = dialect_of(source)
    new = dialect.definitions(schema.fields, keys) if given.get("createTable", "false").lower() == "true" else None
    created_by = '.option("createTable", "true")'
    target = dialect.read_target(source, given["dbtable"], new, keys, created_by=created_by)
    pairs, layout = dialect.pair(schema.fields, target.columns, target.name)
    dialect.require_unique(target, keys, layout.names)
    asked = given.get("strategy", "auto")
    dialect.require_privileges(source, target, layout.names, mode=mode, keys=keys, strategy=asked)
    strategy = _strategy(asked, source, target, mode, open_transactions)
    settle_earlier_runs(get_manager().log, [source])
    gtrid = get_manager().new_gtrid()
    # The write's own transaction begins when its tasks have prepared, and its timeout with it.
    timeouts = {gtrid: inf} | {each.gtrid: each.timeout for each in open_transactions}
    compared = {name: value for name, value in given.items() if name != "strategy"}
    return WritePlan(
        gtrid,
        next(_numbers),
        given["datasource"],
        source.name,
        TaskDatasources.pack([source], {source.name: source}),
        note_locations(get_manager().log, [source], timeouts=timeouts) if strategy == "direct" else frozenset(),
        target,
        tuple(_written_field(schema, field, column, target.name) for field, column in pairs),
        layout,
        mode,
        keys,
        tuple(new or ()),
        strategy,
        given.get("strategy") == "direct",
        given.get("transactionId"),
        _digest([compared, mode, schema.json(), _stored(layout)]),
        tuple(transaction.gtrid for transaction in open_transactions),
        _digest([sorted(options.items()), schema.json()]) if streaming else "",
        planned_trace(gtrid, own=not open_transactions),
        {each.gtrid: each.characteristics for each in open_transactions if each.characteristics.specified},
    )


def _stored(layout: Layout) -> dict[str, object]:
    """The layout as the digests of recorded writes have it: its keys are a stored format."""
    encodings = [
        # The rest follows from the declared types. A column without labels is stored as before there were any.
        {"column": it.column, "kind": it.kind, "oid": it.oid, "array": it.array}
        | ({"labels": it.labels} if it.labels else {})
        for it in layout.encodings
    ]
    return {"names": layout.names, "wires": encodings, "declared": layout.declared}


def _digest(data: object) -> str:
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()


def _parse_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options under the names in OPTIONS. ProgrammingError if one is unknown or missing."""
    given = canonical_options(
        {name: value for name, value in options.items() if name.lower() not in _SPARK_OPTIONS}, OPTIONS
    )
    for name in ("datasource", "dbtable"):
        if not given.get(name):
            raise ProgrammingError(f'the "txpool" format needs .option("{name}", …). Nothing was done')
    if given.get("strategy", "auto") not in _STRATEGIES:
        raise ProgrammingError(
            f"strategy is {given['strategy']!r}: it is one of {', '.join(_STRATEGIES)}. Nothing was done"
        )
    return given


def _strategy(
    wanted: str, source: DataSource, target: Target, mode: str, open_transactions: Sequence[Transaction]
) -> str:
    """Direct only if a late or lost attempt cannot block another task: the format cannot monitor its job."""
    dialect = dialect_of(source)
    why = dialect.why_staged(source, target, mode)
    if why is None and any(transaction.works_in(source.name) for transaction in open_transactions):
        why = f"a transaction works in {source.name} on the driver, and tasks might wait for its locks"
    if why is None and not dialect.is_independent(source, target):
        why = f"{target.name} has a unique index, a foreign key or a trigger, at which a retry might wait for ever"
    if why is not None and wanted == "direct":
        raise ProgrammingError(
            f"strategy=direct is not possible: {why}. Leave it out, or use write_table(). Nothing was done"
        )
    return "staged" if why is not None or wanted == "staged" else "direct"


def _written_field(schema: T.StructType, field: T.StructField, column: Column, table: str) -> WrittenField:
    kind: Any = field.dataType
    local = column.type == "timestamp" and isinstance(kind, T.TimestampType)
    if column.array and column.type == "timestamp" and isinstance(kind.elementType, T.TimestampType):
        remedy = "cast it to array<timestamp_ntz>"
    elif (
        column.type in ("json", "jsonb")
        and not column.array
        and isinstance(kind, T.StructType | T.MapType | T.ArrayType | T.VariantType)
    ):
        remedy = f'make it text by to_json("{field.name}", …), which by default leaves out null fields and microseconds'
    else:
        return WrittenField(schema.names.index(field.name), local)
    raise ProgrammingError(
        f'column {field.name} is {kind.simpleString()}, which the "txpool" format does not convert for '
        f"{table}.{column.name}: {remedy}, or use write_table(). Nothing was done"
    )
