"""spark.read.format("txpool"): reads a table, or the result of a query, by COPY.

The driver's process plans the read, and tasks execute it. Each partition is a statement of its own in a session of its
own, so partitions may see different states of a table that others write, as with Spark's JDBC source; to read one
state, read one partition. Reading takes no part in any transaction, and does not see what the ambient transaction has
written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any, LiteralString

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from txpool.config.properties import nearest
from txpool.datasource import DataSource, find
from txpool.errors import ConfigurationError, NotSupportedError
from txpool.spark.commit.task_datasources import TaskDatasources
from txpool.spark.source.options import canonical_options, option_error
from txpool.spark.source.ranges import Ranges
from txpool.spark.types.decoding import FORMAT, SETTINGS, ReadColumn, decode
from txpool.spark.types.identifiers import quoted

#: The options of reading, named like those of Spark's JDBC source.
#: The options of a read, and what each says; docs/reference/spark.md is made of it.
OPTIONS = {
    "datasource": "A `.properties` file, or a registered name.",
    "dbtable": "The table, or `query`.",
    "query": "A query, or `dbtable`.",
    "partitionColumn": "The column by which the rows are divided into partitions. It needs `numPartitions`.",
    "lowerBound": "Where the ranges begin. The first has what is below, too. Without it, the least value is found.",
    "upperBound": "Where the ranges end. The last has what is above, too. Without it, the greatest value is found.",
    "numPartitions": "How many partitions. Each is a session and a snapshot of its own.",
}
_PARTITIONING = ("partitionColumn", "lowerBound", "upperBound", "numPartitions")

_TABLE: LiteralString = """
    select format('%%I.%%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.oid = to_regclass(%s)
"""
# The base type of a domain, also of a domain over an array and of an array of a domain.
_TYPES: LiteralString = """
    with recursive base(given, oid, is_array) as (
        select a, a, false from unnest(%s::oid[]) a
        union all
        select b.given, case t.typtype when 'd' then t.typbasetype else t.typelem end, b.is_array or t.typtype <> 'd'
        from base b join pg_type t on t.oid = b.oid
        where t.typtype = 'd' or (t.typcategory = 'A' and not b.is_array)
    )
    select b.given::int8, t.typname::text, b.is_array, t.typtype = 'e', format_type(b.given, null)
    from base b join pg_type t on t.oid = b.oid
    where t.typtype <> 'd' and (t.typcategory <> 'A' or b.is_array)
"""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What is read, and in which partitions; plain data without a secret, for other processes."""

    datasources: TaskDatasources
    datasource: str
    #: The SQL after FROM: a table, or a query in parentheses.
    relation: str
    columns: tuple[ReadColumn, ...]
    #: The WHERE clause of each partition; empty for all rows.
    conditions: tuple[str, ...]

    @property
    def schema(self) -> StructType:
        """The columns with Spark's types. All are nullable, as with Spark's own sources."""
        return StructType([StructField(column.name, column.spark) for column in self.columns])


def plan_reading(options: Mapping[str, str]) -> ReadPlan:
    """Plan a read by the options of spark.read, in the driver's process and outside of any transaction.

    Errors: ProgrammingError if an option is unknown, missing or wrong, if the table does not exist, or if Spark has no
    type for a column; ConfigurationError if there is no such datasource; NotSupportedError for another driver than
    psycopg.
    """
    read_options = _ReadOptions.of(options)
    source = find(read_options.datasource)
    if not source.resource_manager.spark_reads:
        raise NotSupportedError(
            f"{source.name} (driver={source.driver}) {source.resource_manager.why_no_tasks}: read the rows on the "
            "driver, and make a DataFrame of them by spark.createDataFrame(rows). Nothing was read."
        )
    return Context().run(_make_plan, source, read_options)


class Reader(DataSourceReader):
    """Reads the partitions of a plan as Arrow's record batches. `schema` may leave out columns of the plan.

    Errors: ProgrammingError if the schema has other columns; in tasks the database's own, and DataError for a value
    that does not fit, with its column.
    """

    def __init__(self, plan: ReadPlan, schema: StructType) -> None:
        self._plan = plan
        self._schema = schema
        self._columns = _selected_columns(plan, schema)

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number, _ in enumerate(self._plan.conditions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        plan = self._plan
        datasources, unavailable = plan.datasources.unpack()
        if plan.datasource in unavailable:
            raise ConfigurationError(
                f"the datasource {plan.datasource} is not available in this task: {unavailable[plan.datasource]}"
            )
        selected = ", ".join(sql for column in self._columns for sql in column.expressions())
        condition = plan.conditions[partition.value]
        statement = f"copy (select {selected} from {plan.relation}{condition}) to stdout {FORMAT}"  # noqa: S608
        with _session(datasources[plan.datasource]) as cursor, cursor.copy(statement) as copy:
            yield from decode(copy, self._columns, to_arrow_schema(self._schema, timezone="UTC"))


@contextmanager
def _session(source: DataSource) -> Iterator[Any]:
    """A cursor in a read-only transaction, so that a query which would write fails instead of being rolled back."""
    connection: Any = source.connect()
    with closing(connection):
        connection.read_only = True
        cursor = connection.cursor()
        cursor.execute(SETTINGS)
        yield cursor


def _selected_columns(plan: ReadPlan, schema: StructType) -> list[ReadColumn]:
    """The columns of the plan that a schema has. ProgrammingError if it has others."""
    known = {column.name: column for column in plan.columns}
    chosen = []
    for field in schema.fields:
        column = known.get(field.name)
        if column is None:
            raise option_error(f"column {field.name} of the schema: {nearest(field.name, known)}")
        if column.spark != field.dataType:
            raise option_error(
                f"column {field.name} is {column.spark.simpleString()}, and {field.dataType.simpleString()} in the "
                "schema: leave the schema out, and cast it after reading"
            )
        chosen.append(column)
    return chosen


# -- the options ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ReadOptions:
    """The options of spark.read."""

    datasource: str
    dbtable: str | None
    query: str | None
    ranges: Ranges | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> _ReadOptions:
        given = canonical_options(options, OPTIONS)
        if "datasource" not in given:
            raise option_error(
                '.option("datasource", "conf/orders.properties") is missing: a file, or a registered name'
            )
        if ("dbtable" in given) == ("query" in given):
            raise option_error('write either .option("dbtable", "orders") or .option("query", "select …")')
        partitioning = [name for name in _PARTITIONING if name in given]
        if partitioning and not {"partitionColumn", "numPartitions"} <= set(partitioning):
            raise option_error(f"option {partitioning[0]} needs both partitionColumn and numPartitions as well")
        ranges = None
        if partitioning:
            number = given["numPartitions"].strip()
            if not re.fullmatch("0*[1-9][0-9]{0,6}", number):
                raise option_error(f"numPartitions is {number!r}: write a whole number from 1")
            ranges = Ranges(given["partitionColumn"], given.get("lowerBound"), given.get("upperBound"), int(number))
        return cls(given["datasource"], given.get("dbtable"), given.get("query"), ranges)


# -- what the database describes ------------------------------------------------------------------------------------


def _make_plan(source: DataSource, options: _ReadOptions) -> ReadPlan:
    with _session(source) as cursor:
        relation = _relation(cursor, source, options)
        columns = _columns_of(cursor, relation)
        ranges = options.ranges
        conditions = ("",) if ranges is None else ranges.conditions(cursor, relation, columns)
    return ReadPlan(TaskDatasources.pack([source], {source.name: source}), source.name, relation, columns, conditions)


def _relation(cursor: Any, source: DataSource, options: _ReadOptions) -> str:
    if options.query is not None:
        return f"(\n{options.query.rstrip().rstrip(';')}\n) as query"
    assert options.dbtable is not None  # noqa: S101 - for mypy: there is either a query or a table
    if options.dbtable.lstrip().startswith("("):  # (select …) as name, which Spark's JDBC source takes, too
        return options.dbtable
    found = cursor.execute(_TABLE, [options.dbtable]).fetchone()
    if found is None:
        raise option_error(
            f"there is no table {options.dbtable} in {source.name}: write table, schema.table, or a query"
        )
    return str(found[0])


def _columns_of(cursor: Any, relation: str) -> tuple[ReadColumn, ...]:
    cursor.execute(f"select * from {relation} limit 0")  # noqa: S608
    described = [
        (column.name, column.type_code, cursor.pgresult.fmod(number))
        for number, column in enumerate(cursor.description)
    ]
    names = [name for name, _, _ in described]
    for name in names:
        if names.count(name) > 1:
            raise option_error(f"two columns are named {name}: give them different names, select … as …")
    if not names:
        raise option_error("there is no column to read")
    cursor.execute(_TYPES, [[oid for _, oid, _ in described]])
    types = {given: about for given, *about in cursor.fetchall()}
    columns = []
    for name, oid, modifier in described:
        kind, array, enum, declared = types[oid]
        column = ReadColumn(name, kind, array, enum, _digits(kind, modifier))
        if not column.known:
            raise option_error(
                f'column {name} is {declared}, for which Spark has no type: cast it, .option("query", "select '
                f'{quoted(name)}::text, …")'
            )
        columns.append(column)
    return tuple(columns)


def _digits(kind: str, modifier: int) -> tuple[int, int] | None:
    """Precision and scale of a numeric by its type modifier, whose scale has eleven bits with a sign."""
    if kind != "numeric" or modifier < 4:
        return None
    return (modifier - 4) >> 16, (((modifier - 4) & 2047) ^ 1024) - 1024
