"""spark.read.format("txpool"): a table, or a query's result, by COPY, one session for each partition.

The driver's own process describes what is read, and says what each task asks for; the tasks read it. Each partition is
a statement of its own in a session of its own: while others write, partitions see different moments of the table, as
with Spark's JDBC source. What must be of one moment is read in one partition. Reading takes no part in any transaction,
and does not see what the transaction around it has written.
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
from txpool.spark.source.ranges import Ranges, option_error
from txpool.spark.table.target import quoted
from txpool.spark.types.decoding import FORMAT, SETTINGS, ReadColumn, decode

#: The options of reading, as Spark's JDBC source has them.
OPTIONS = ("datasource", "dbtable", "query", "partitionColumn", "lowerBound", "upperBound", "numPartitions")

_TABLE: LiteralString = """
    select format('%%I.%%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.oid = to_regclass(%s)
"""
# Domains are looked through, around an array and in it.
_TYPES: LiteralString = """
    with recursive base(asked, oid, is_array) as (
        select a, a, false from unnest(%s::oid[]) a
        union all
        select b.asked, case t.typtype when 'd' then t.typbasetype else t.typelem end, b.is_array or t.typtype <> 'd'
        from base b join pg_type t on t.oid = b.oid
        where t.typtype = 'd' or (t.typcategory = 'A' and not b.is_array)
    )
    select b.asked::int8, t.typname::text, b.is_array, t.typtype = 'e', format_type(b.asked, null)
    from base b join pg_type t on t.oid = b.oid
    where t.typtype <> 'd' and (t.typcategory <> 'A' or b.is_array)
"""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What is read, and in which parts; plain data without a secret, for other processes."""

    datasources: TaskDatasources
    datasource: str
    #: What stands behind FROM.
    origin: str
    columns: tuple[ReadColumn, ...]
    #: The condition of each partition; empty for all rows.
    conditions: tuple[str, ...]

    @property
    def schema(self) -> StructType:
        """The columns as Spark has them; any may be NULL, as with every source of Spark's."""
        return StructType([StructField(column.name, column.spark) for column in self.columns])


def plan_reading(options: Mapping[str, str]) -> ReadPlan:
    """What the options of spark.read ask for; in the driver's own process, outside of any transaction.

    Errors: ProgrammingError where an option is unknown, missing or wrong, or where there is no such table, or a column
    has a type without counterpart; ConfigurationError where there is no such datasource; NotSupportedError where its
    driver is another than psycopg.
    """
    wanted = _ReadOptions.of(options)
    source = find(wanted.datasource)
    if not source.resource_manager.spark_tasks:
        raise NotSupportedError(
            f"{source.name} (driver={source.driver}) {source.resource_manager.why_no_tasks}, which tasks elsewhere "
            "cannot read: read the rows on the driver, and make a DataFrame of them by "
            "spark.createDataFrame(rows). Nothing was read."
        )
    return Context().run(_plan, source, wanted)


class Reader(DataSourceReader):
    """Reads what a plan says, as Arrow's batches; `schema` may have some of its columns only.

    Errors: ProgrammingError where the schema has others; in tasks the database's own, and DataError for a value that
    does not fit, with its column.
    """

    def __init__(self, plan: ReadPlan, schema: StructType) -> None:
        self._plan = plan
        self._schema = schema
        self._columns = _chosen(plan, schema)

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number, _ in enumerate(self._plan.conditions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        plan = self._plan
        here, missing = plan.datasources.unpack()
        if plan.datasource in missing:
            raise ConfigurationError(f"the datasource {plan.datasource} is not here: {missing[plan.datasource]}")
        selected = ", ".join(sql for column in self._columns for sql in column.expressions())
        condition = plan.conditions[partition.value]
        statement = f"copy (select {selected} from {plan.origin}{condition}) to stdout {FORMAT}"  # noqa: S608
        with _session(here[plan.datasource]) as cursor, cursor.copy(statement) as copy:
            yield from decode(copy, self._columns, to_arrow_schema(self._schema, timezone="UTC"))


@contextmanager
def _session(source: DataSource) -> Iterator[Any]:
    """A cursor whose work ends with a rollback: what a function would write is an error, and not undone in silence."""
    connection: Any = source.connect()
    with closing(connection):
        connection.read_only = True
        cursor = connection.cursor()
        cursor.execute(SETTINGS)
        yield cursor


def _chosen(plan: ReadPlan, schema: StructType) -> list[ReadColumn]:
    """The columns that a schema names. ProgrammingError where it has others."""
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


# -- what is asked for ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ReadOptions:
    """The options, by their names in capitals or not."""

    datasource: str
    dbtable: str | None
    query: str | None
    ranges: Ranges | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> _ReadOptions:
        known = {name.lower(): name for name in OPTIONS}
        for name in options:
            if name.lower() not in known:
                raise option_error(f"option {name} is unknown: {nearest(name, OPTIONS)}")
        given = {known[name.lower()]: value for name, value in options.items()}
        if "datasource" not in given:
            raise option_error(
                '.option("datasource", "conf/orders.properties") is missing: a file, or a registered name'
            )
        if ("dbtable" in given) == ("query" in given):
            raise option_error('write .option("dbtable", "orders") or .option("query", "select …"), one of them')
        parted = [name for name in OPTIONS[3:] if name in given]
        if parted and not {"partitionColumn", "numPartitions"} <= set(parted):
            raise option_error(f"option {parted[0]} wants both partitionColumn and numPartitions beside it")
        ranges = None
        if parted:
            number = given["numPartitions"].strip()
            if not re.fullmatch("0*[1-9][0-9]{0,6}", number):
                raise option_error(f"numPartitions is {number!r}: write a whole number from 1")
            ranges = Ranges(given["partitionColumn"], given.get("lowerBound"), given.get("upperBound"), int(number))
        return cls(given["datasource"], given.get("dbtable"), given.get("query"), ranges)


# -- the database's answers -----------------------------------------------------------------------------------------


def _plan(source: DataSource, wanted: _ReadOptions) -> ReadPlan:
    with _session(source) as cursor:
        origin = _origin(cursor, source, wanted)
        columns = _described(cursor, origin)
        ranges = wanted.ranges
        conditions = ("",) if ranges is None else ranges.conditions(cursor, origin, columns)
    return ReadPlan(TaskDatasources.pack([source], {source.name: source}), source.name, origin, columns, conditions)


def _origin(cursor: Any, source: DataSource, wanted: _ReadOptions) -> str:
    if wanted.query is not None:
        return f"(\n{wanted.query.rstrip().rstrip(';')}\n) as query"
    assert wanted.dbtable is not None  # noqa: S101 - for mypy: one of them is there
    if wanted.dbtable.lstrip().startswith("("):  # as Spark's JDBC source has it: (select …) as name
        return wanted.dbtable
    found = cursor.execute(_TABLE, [wanted.dbtable]).fetchone()
    if found is None:
        raise option_error(
            f"there is no table {wanted.dbtable} in {source.name}: write table, schema.table, or a query"
        )
    return str(found[0])


def _described(cursor: Any, origin: str) -> tuple[ReadColumn, ...]:
    cursor.execute(f"select * from {origin} limit 0")  # noqa: S608
    described = [
        (column.name, column.type_code, cursor.pgresult.fmod(number))
        for number, column in enumerate(cursor.description)
    ]
    names = [name for name, _, _ in described]
    for name in names:
        if names.count(name) > 1:
            raise option_error(f"two columns are named {name}: give them names of their own, select … as …")
    if not names:
        raise option_error("there is no column to read")
    cursor.execute(_TYPES, [[oid for _, oid, _ in described]])
    types = {asked: about for asked, *about in cursor.fetchall()}
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
    """Precision and scale as pg_attribute has them: the scale in eleven bits, with a sign."""
    if kind != "numeric" or modifier < 4:
        return None
    return (modifier - 4) >> 16, (((modifier - 4) & 2047) ^ 1024) - 1024
