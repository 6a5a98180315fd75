"""Direct writes into MariaDB and MySQL: each task writes into the table itself, in a branch that stays prepared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.spark import mysql
from tests.spark.mysql import describe
from tests.support.mysql import MySQLServer
from txpool.datasource import DataSource, connect
from txpool.resources.marked.branch_rows import BranchRows
from txpool.spark import foreach_partition, register, write_table
from txpool.spark.table.mysql.copying import MySQLCopy
from txpool.spark.types.encoding import ColumnEncoding
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources", "server")]


@pytest.fixture(params=["mariadb", "mysql8"])
def server(request: pytest.FixtureRequest, sources: Path) -> MySQLServer:
    """Each of the two servers, with a table, and a file that describes its database one."""
    found: MySQLServer = request.getfixturevalue(request.param)
    found.empty()
    found.execute("create table landed (id bigint primary key, who varchar(20))", database="one")
    describe(sources, found)
    return found


@pytest.fixture
def ask(server: MySQLServer) -> Callable[..., list[tuple[Any, ...]]]:
    return lambda *statements: server.execute(*statements, database="one")


def frame(spark: SparkSession, *span: int, partitions: int = 3) -> DataFrame:
    return spark.range(*span, numPartitions=partitions).selectExpr("'new' as who", "id")


def test_what_tasks_have_prepared_ends_with_the_transaction(spark: SparkSession, server: MySQLServer, ask: Any) -> None:
    with pytest.raises(LookupError), transaction() as tx:
        assert write_table(frame(spark, 9), "shop.properties", "landed").strategy == "direct"
        assert [name.startswith(f"{tx.gtrid}:") for name in server.names()] == [True] * 3
        raise LookupError
    assert (server.names(), ask("select * from landed")) == ([], [])
    assert write_table(frame(spark, 9), "shop.properties", "landed", strategy="direct").rows == 9
    assert (server.names(), ask("select count(*) from landed"), mysql.left(server)) == ([], [(9,)], [])


@pytest.mark.costly
def test_two_partitions_of_one_key_do_not_wait_for_ever(spark: SparkSession, server: MySQLServer, ask: Any) -> None:
    """The second waits for the first, whose branch stays prepared: so the rows are staged, and the key is told."""
    df = frame(spark, 4, partitions=2).selectExpr("who", "id % 2 as id")
    with pytest.raises(Exception, match=r"Duplicate entry '[01]' for key"):
        write_table(df, "shop.properties", "landed")
    ask("set global innodb_lock_wait_timeout = 1")
    try:
        with pytest.raises(Exception, match="No two partitions may write the same row"):
            write_table(df, "shop.properties", "landed", strategy="direct")
    finally:
        ask("set global innodb_lock_wait_timeout = 50")
    assert (server.names(), ask("select * from landed"), mysql.left(server)) == ([], [], [])


def test_where_the_driver_has_worked_tasks_do_not_wait_for_it(spark: SparkSession, ask: Any) -> None:
    with transaction():
        connect("shop.properties").cursor().execute("insert into landed values (1, 'driver')")
        assert write_table(frame(spark, 2, 9), "shop.properties", "landed").strategy == "staged"
        assert write_table(frame(spark, 9, 11), "shop.properties", "landed", transaction_id="x").strategy == "staged"
    with transaction():
        write = write_table(frame(spark, 11, 20), "shop.properties", "landed", transaction_id="y")
        assert write.strategy == "direct"  # its record is in another table
    assert ask("select count(*) from landed") == [(19,)]


def test_the_format_writes_direct_where_no_retry_can_wait(spark: SparkSession, server: MySQLServer, ask: Any) -> None:
    register(spark)
    ask(
        "create table loose (id bigint, who varchar(20))",
        "create trigger t before insert on landed for each row set @x=1",
    )
    options = {"datasource": "shop.properties", "strategy": "direct"}
    with transaction():
        frame(spark, 9).write.format("txpool").options(**options, dbtable="loose").mode("append").save()
        assert len(server.names()) == 3
    assert ask("select count(*) from loose") == [(9,)]
    with pytest.raises(Exception, match="landed` has a unique index, a foreign key or a trigger"):
        frame(spark, 9).write.format("txpool").options(**options, dbtable="landed").mode("append").save()
    ask("alter table landed drop primary key")
    with pytest.raises(Exception, match="landed` has a unique index, a foreign key or a trigger"):
        frame(spark, 9).write.format("txpool").options(**options, dbtable="landed").mode("append").save()


@pytest.mark.costly
def test_the_lengths_of_texts_at_their_bounds(spark: SparkSession, ask: Any) -> None:
    """And rows of which one statement has fewer than of others, or none at all."""
    ask("create table texts (id int primary key, given int, text longtext character set utf8mb4, more double)")
    lengths = [0, 1, 250, 251, 252, 65_534, 65_535, 65_536, 400_000, 600_000]
    df = spark.createDataFrame([(n, lengths[n % 10]) for n in range(1_300)], "id int, given int").selectExpr(
        "id",
        "given",
        "case when id < 10 or given < 300 then repeat('é', given) end as text",
        "if(id % 7 = 0, null, id) as more",
    )
    write_table(
        df.coalesce(1).selectExpr("id", "given", "text", "cast(more as double) more"), "shop.properties", "texts"
    )
    assert ask("select count(*), sum(more is null), count(text) from texts") == [(1300, 186, 655)]
    wrong = "text is not null and (char_length(text) <> given or replace(text, 'é', '') <> '') or more <> id"
    assert ask(f"select id from texts where {wrong}") == []


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
def test_a_server_that_holds_no_prepared_statements_is_sent_text(spark: SparkSession, ask: Any) -> None:
    ((most,),) = ask("select @@max_prepared_stmt_count")
    ask("set global max_prepared_stmt_count = 0")
    try:
        assert write_table(frame(spark, 9), "shop.properties", "landed").rows == 9
    finally:
        ask(f"set global max_prepared_stmt_count = {most}")
    assert ask("select count(*) from landed") == [(9,)]


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
def test_no_slots_are_counted_where_the_server_has_none(spark: SparkSession, ask: Any) -> None:
    def write(rows: Any) -> None:
        cursor = connect("shop.properties").cursor()
        for row in rows:
            cursor.execute("insert into landed values (%s, 'task')", [row.id])

    with transaction():
        assert foreach_partition(spark.range(4), write, datasources=["shop.properties"]).partitions == 2
    assert ask("select count(*) from landed") == [(4,)]


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
def test_the_branches_of_tasks_write_rows_too(
    spark: SparkSession, server: MySQLServer, sources: Path, ask: Any
) -> None:
    describe(sources, server, "proven", "xa.evidence = row")
    source = DataSource.from_properties("proven.properties")
    BranchRows("proven", source.driver_adapter, "txpool_branches").create()
    with transaction():
        assert write_table(frame(spark, 9), "proven.properties", "landed").strategy == "direct"
        assert ask("select count(*) from txpool_branches where kind = 'commit'") == [(0,)]
    written = ask("select xid from txpool_branches where kind = 'commit'")
    assert len(written) == 3
    source.close()
    assert (ask("select xid from txpool_branches where kind = 'commit'"), ask("select count(*) from landed")) == (
        [],
        [(9,)],
    )


def test_no_message_is_longer_than_the_server_takes(server: MySQLServer, sources: Path, ask: Any) -> None:
    """Whatever the rows need beside their values: the text before them, and the types of parameters."""
    file = sources / "shop.properties"
    ask("create table packets (a int, b varchar(90), c int, d int)")
    ((most,),) = ask("select @@global.max_allowed_packet")
    encodings = tuple(ColumnEncoding(name, "text" if name == "b" else "number") for name in "abcd")
    write = MySQLCopy(str(file), "insert into packets (a, b, c, d) values ", encodings)
    rows, numbers = 640, pa.array(range(640), pa.int32())
    try:
        for packet in (4_096, 65_536):
            ask(f"set global max_allowed_packet = {packet}")
            DataSource.from_properties(file).close()
            with transaction():
                for width in range(81, 65, -1):
                    batch = pa.record_batch(
                        [numbers, pa.array(["x" * width] * rows), numbers, numbers], names=list("abcd")
                    )
                    write(iter([batch]))
            assert ask("select count(*) from packets") == [(rows * 16,)]
            ask("delete from packets")
    finally:
        ask(f"set global max_allowed_packet = {most}")
        DataSource.from_properties(file).close()
