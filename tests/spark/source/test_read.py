"""A read has each row once, in the partitions that its options ask for; the seed is printed."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import txpool
from tests.spark.reads import parts, plan_of, reading, rows
from txpool.errors import ConfigurationError, DataError, Error, NotSupportedError, ProgrammingError
from txpool.spark.source.reading import Reader, plan_reading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Databases

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources")]

# -- partitions -----------------------------------------------------------------------------------------------------

_SPREAD = {
    "smallint": "(random() * 60000 - 30000)::int",
    "bigint": "(random() * 1e18 - 5e17)::numeric",
    "numeric(30, 5)": "(random() * 1e18)::numeric / 1e5",
    "real": "random()",
    "double precision": "case n when 7 then 'NaN' when 8 then '-Infinity' else random() * 1e300 end",
    "date": "case n when 7 then 'infinity' else date '0400-01-01' + (random() * 2000000)::int end",
    "timestamp": "timestamp '1500-01-01' + random() * interval '500 years'",
    "timestamptz": "case n when 7 then '-infinity' else timestamptz '1900-01-01Z' + random() * interval '9 years' end",
}


@pytest.mark.parametrize("kind", _SPREAD)
def test_each_row_is_in_one_partition(databases: Databases, kind: str) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    r = random.Random(seed)
    databases.execute("one", "create domain positive as int; alter database one set timezone = 'Asia/Kolkata'")
    number = r.randint(2, 9)
    with psycopg.connect(databases.dsn("one")) as connection:
        connection.execute("select setseed(%s)", [r.random()])
        value = f"case when n % 10 = 0 then null else ({_SPREAD[kind]})::{kind} end"
        connection.execute(f"create table cut as select n as id, {value} as v from generate_series(1, 300) n")  # type: ignore[arg-type]
        found = "select v::text from cut where v is not null and v::text !~* 'inf|nan' order by cut.v"
        some = sorted(r.sample(range(200), 2))
        texts = [text for (text,) in connection.execute(found).fetchall()]
    ids = StructType([StructField("id", plan_of(dbtable="cut").schema["id"].dataType)])
    for bounds in ({}, {"lowerBound": texts[some[0]], "upperBound": texts[some[1]]}):
        plan = plan_of(dbtable="cut", partitionColumn="v", numPartitions=str(number), **bounds)
        found_in = parts(plan, ids)
        assert len(found_in) == number
        assert sorted(number for part in found_in for (number,) in part) == [*range(1, 301)]
        if not bounds:
            assert max(map(len, found_in)) < 300 * 0.9


def test_partitions_are_few_where_values_are(databases: Databases) -> None:
    databases.execute("one", "create table cut (id int, v bigint)")
    options = {"dbtable": "cut", "partitionColumn": "v", "numPartitions": "8"}
    assert parts(plan_of(**options)) == [[]]
    databases.execute("one", "insert into cut select n, nullif(n, 4) from generate_series(1, 4) n")
    assert parts(plan_of(**options)) == [[(1, 1), (4, None)], [(2, 2), (3, 3)]]
    # Where the bounds are Spark's own example, so are the partitions.
    plan = plan_of(**(options | {"numPartitions": "4", "lowerBound": "0", "upperBound": "1000"}))
    assert plan.conditions == (
        """ where "v" < '250'::bigint or "v" is null""",
        """ where "v" >= '250'::bigint and "v" < '500'::bigint""",
        """ where "v" >= '500'::bigint and "v" < '750'::bigint""",
        """ where "v" >= '750'::bigint""",
    )


# -- in Spark -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_schema_of_fewer_columns_and_what_spark_prunes(spark: SparkSession, databases: Databases) -> None:
    databases.execute(
        "one", "create table t as select n as id, n * 2 as twice, 'n' || n as name from generate_series(1, 9) n"
    )
    some = reading(spark, dbtable="t").schema("name string, id int").load()
    assert [tuple(row) for row in some.orderBy("id").limit(2).collect()] == [("n1", 1), ("n2", 2)]
    every = reading(spark, dbtable="t", partitionColumn="id", numPartitions="2").load()
    assert every.where("twice > 4").count() == 7
    assert [row.twice for row in every.select("twice").orderBy("twice").take(2)] == [2, 4]


def test_a_schema_that_is_not_the_tables_is_an_error() -> None:
    plan = plan_of(query="select 1::bigint as id, null as name")
    with pytest.raises(ProgrammingError, match=r"column ids of the schema: did you mean id\?"):
        Reader(plan, StructType([StructField("ids", LongType())]))
    with pytest.raises(ProgrammingError, match=r"column id is bigint, and string in the schema"):
        Reader(plan, StructType([StructField("id", StringType())]))
    with pytest.raises(DataError, match="column name: a value is NULL"):
        parts(plan, StructType([StructField("name", StringType(), nullable=False)]))


def test_it_takes_no_part_in_the_transaction(spark: SparkSession, databases: Databases) -> None:
    databases.execute("one", "create table t (id int)")
    with txpool.transaction():
        connection = txpool.connect("one.properties")
        connection.cursor().execute("insert into t values (1)")
        before = reading(spark, dbtable="t").load().collect()
        connection.cursor().execute("insert into t values (2)")
    assert before == []
    assert rows(dbtable="t") == [(1,), (2,)]


def test_who_stops_leaves_nothing_behind(spark: SparkSession, databases: Databases) -> None:
    options = {"query": "select n, repeat('x', 100) as it from generate_series(1, 1000000) n"}
    plan = plan_of(**options)
    batches = Reader(plan, plan.schema).read(Reader(plan, plan.schema).partitions()[0])
    assert next(batches).num_rows > 0
    batches.close()  # type: ignore[attr-defined]
    query = "select count(*) from pg_stat_activity where query like 'copy%%' and state <> 'idle'"
    assert databases.rows("one", query) == [(0,)]
    assert len(reading(spark, **options).load().take(3)) == 3


def test_a_query_does_not_write(databases: Databases) -> None:
    databases.execute(
        "one",
        "create table t (id int); create function f() returns int language sql as 'insert into t values (1); select 1'",
    )
    with pytest.raises(Error, match="read-only"):
        rows(query="select f() as id")


# -- errors ---------------------------------------------------------------------------------------------------------

_T = {"dbtable": "t"}
_CUT = _T | {"partitionColumn": "id", "numPartitions": "2"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dbtabel": "t"}, r"no option dbtabel, and nothing was done: did you mean dbtable\?"),
        ({}, r"either .*dbtable.* or .*query"),
        (_T | {"query": "select 1"}, r"either .*dbtable.* or .*query"),
        (_T | {"numPartitions": "2"}, "option numPartitions needs both partitionColumn and numPartitions"),
        (_T | {"lowerBound": "2"}, "option lowerBound needs both"),
        (_CUT | {"numPartitions": "0"}, "numPartitions is '0': write a whole number from 1"),
        (_CUT | {"partitionColumn": "idd"}, r"partitionColumn idd is no column: did you mean id\?"),
        (_CUT | {"partitionColumn": "name"}, "partitionColumn name is string: it must be a number"),
        (_CUT | {"partitionColumn": "ids"}, "partitionColumn ids is array<int>: it must be a number"),
        (_CUT | {"lowerBound": "x"}, "lowerBound is 'x', which is not a bound of type integer"),
        (
            _CUT | {"partitionColumn": "price", "upperBound": "NaN"},
            "upperBound is 'NaN', which is not a bound of type numeric",
        ),
        (_CUT | {"lowerBound": "9", "upperBound": "1"}, "lowerBound is 9, which is above upperBound, 1"),
        ({"dbtable": "tt"}, "there is no table tt in one"),
        ({"query": "select 1 as a, 2 as a"}, "two columns are named a"),
        ({"query": "select from t"}, "no column to read"),
        ({"query": "select id, '(1,2)'::point as at from t"}, r'column at is point, .*select "at"::text'),
        ({"query": "select 1::numeric(50, 2) as big"}, "column big is numeric, for which Spark has no type"),
        ({"query": "selec 1"}, "syntax error"),
    ],
)
def test_a_mistake_is_told_before_anything_is_read(databases: Databases, options: dict[str, str], message: str) -> None:
    databases.execute("one", "create table t (id int, name text, ids int[], price numeric); insert into t values (1)")
    with pytest.raises(ProgrammingError, match=message):
        plan_of(**options)


def test_a_datasource_that_is_none(sources: Path) -> None:
    with pytest.raises(ProgrammingError, match=r"datasource.*is missing"):
        plan_reading({"dbtable": "t"})
    with pytest.raises(ConfigurationError, match=r"three\.properties"):
        plan_reading({"datasource": "three.properties", "dbtable": "t"})
    (sources / "file.properties").write_text("driver = sqlite3\nmode = local\nurl = sqlite:///file.db\n")
    with pytest.raises(NotSupportedError, match=r"file \(driver=sqlite3\)"):
        plan_reading({"datasource": "file.properties", "dbtable": "t"})


def test_a_plan_travels_without_its_secret(databases: Databases, sources: Path) -> None:
    plan = plan_of(query="select 1 as id")
    assert databases.server.password.encode() not in pickle.dumps(plan)
    assert parts(pickle.loads(pickle.dumps(plan))) == [[(1,)]]
    inline = sources / "inline.properties"
    inline.touch(0o600)
    inline.write_text(f"driver = psycopg\nurl = {databases.url('one')}\npassword = {databases.server.password}\n")
    plan = plan_of(datasource="inline.properties", query="select 1 as id")
    inline.unlink()
    with pytest.raises(
        ConfigurationError, match=r"the datasource inline is not available in this task: .*holds a password itself"
    ):
        parts(plan)
