"""write_table() into MariaDB and MySQL: tasks prepare their rows, or stage them, and the driver moves them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from tests.spark import mysql
from tests.spark.mysql import describe
from tests.support.mysql import MySQLServer
from txpool.datasource import DataSource, connect
from txpool.errors import DataError, NotSupportedError, OperationalError, ProgrammingError
from txpool.spark import Progress, write_table
from txpool.spark.table.mysql.dialect import MySQLTables
from txpool.tm.demarcation.block import transaction
from txpool.tm.demarcation.calls import resume, suspend

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.conftest import Databases
    from tests.support.mysql import RequireDriver

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


@pytest.fixture
def rows(server: MySQLServer) -> Callable[[], list[tuple[Any, ...]]]:
    return lambda: server.execute("select id, who from landed order by id", database="one")


@pytest.fixture
def left(server: MySQLServer) -> Callable[[], list[str]]:
    return lambda: mysql.left(server)


def frame(spark: SparkSession, *span: int, who: str = "new", partitions: int = 3) -> DataFrame:
    return spark.range(*span, numPartitions=partitions).selectExpr(f"'{who}' as who", "id")


@contextmanager
def only_innodb(server: MySQLServer) -> Iterator[None]:
    """Within the block, rows may be staged in InnoDB only."""
    setting = ("enforce_storage_engine", "InnoDB", "null")
    name, value, former = setting if server.is_mariadb else ("sql_require_primary_key", "on", "off")
    server.execute(f"set global {name} = {value}")
    try:
        yield
    finally:
        server.execute(f"set global {name} = {former}")


def new(*ids: int, who: str = "new") -> list[tuple[int, str]]:
    return [(number, who) for number in range(*ids)]


def test_all_partitions_land_with_what_else_is_in_the_transaction(
    spark: SparkSession, databases: Databases, server: MySQLServer, rows: Any, left: Any
) -> None:
    databases.execute("one", "create table landed (id bigint primary key, who text)")
    with pytest.raises(LookupError), transaction():
        write_table(frame(spark, 100), "shop.properties", "landed")
        write_table(frame(spark, 100), "one.properties", "landed")
        raise LookupError  # and it is as if it had not been
    assert rows() == databases.rows("one", "table landed") == databases.prepared() == server.prepared() == left() == []
    with transaction() as tx:
        report = write_table(frame(spark, 100), "shop.properties", "landed")
        few = frame(spark, 100, 101).withColumnRenamed("id", "ID")
        assert write_table(few, "shop.properties", "one.landed").write == 1
        assert len(server.names()) == 4
        write_table(frame(spark, 7), "one.properties", "landed")
        assert rows() == []
    assert (report.gtrid, report.write, report.table, report.mode) == (tx.gtrid, 0, "`one`.`landed`", "append")
    assert (report.strategy, report.partitions, report.attempts, report.rows) == ("direct", 3, 3, 100)
    assert report.bytes > 100 * 8
    assert rows() == new(101)
    assert databases.rows("one", "select id, who from landed order by id") == new(7)
    assert (databases.prepared(), server.prepared(), left()) == ([], [], [])
    assert write_table(spark.createDataFrame([], "id bigint, who string"), "shop.properties", "landed").rows == 0
    with pytest.raises(Exception, match="Duplicate entry '99'"):
        write_table(frame(spark, 99, 120), "shop.properties", "landed")
    assert (rows(), left()) == (new(101), [])


@pytest.mark.parametrize("mode", ["cmr", "last-resource"])
def test_every_mode_of_the_datasource(
    spark: SparkSession, server: MySQLServer, sources: Path, rows: Any, left: Any, mode: str
) -> None:
    describe(sources, server, "other", f"mode = {mode}")
    if mode == "cmr":
        DataSource.from_properties("other.properties").xids_table().create()  # type: ignore[attr-defined]
    write_table(frame(spark, 10), "other.properties", "landed")
    assert (rows(), left()) == (new(10), [])


def test_over_mysqlclient(
    spark: SparkSession, server: MySQLServer, sources: Path, rows: Any, left: Any, require_driver: RequireDriver
) -> None:
    require_driver("mysqlclient")
    describe(sources, server, "other", driver="mysqlclient")
    write_table(frame(spark, 10), "other.properties", "landed")
    write_table(frame(spark, 5, 12, who="née"), "other.properties", "landed", "upsert", keys=["id"])
    with pytest.raises(Exception, match="Data too long"):
        write_table(frame(spark, 20, 21, who="x" * 21), "other.properties", "landed")
    assert (rows(), left()) == (new(5) + new(5, 12, who="née"), [])


def test_modes(spark: SparkSession, ask: Any, rows: Any, left: Any) -> None:
    write_table(frame(spark, 5), "shop.properties", "landed")
    write_table(frame(spark, 3, 8, who="newer"), "shop.properties", "landed", "upsert", keys=["id"])
    assert rows() == new(3) + new(3, 8, who="newer")
    with transaction():
        write_table(frame(spark, 4), "shop.properties", "landed", "overwrite")
        assert len(rows()) == 8  # who reads meanwhile sees the old ones
    assert rows() == new(4)
    assert write_table(frame(spark, 9), "shop.properties", "landed", "ignore").strategy == "skipped"
    with pytest.raises(ProgrammingError, match=r"`one`\.`landed` exists already"):
        write_table(frame(spark, 9), "shop.properties", "landed", "error")
    with pytest.raises(ProgrammingError, match=r"there is no table `one`\.`elsewhere` in shop"):
        write_table(frame(spark, 9), "shop.properties", "elsewhere")
    assert write_table(frame(spark, 9), "shop.properties", "one.`else ``wher.e`", "error").rows == 9
    assert ask("select count(*) from `else ``wher.e`") == [(9,)]
    assert write_table(frame(spark, 2), "shop.properties", "keyed", "upsert", keys=["id"], create=True).rows == 2
    with pytest.raises(Exception, match="Duplicate"):
        ask("insert into keyed values ('old', 1)")
    assert (rows(), left()) == (new(4), ["else `wher.e", "keyed"])


def test_a_table_that_is_created_goes_with_its_transaction(spark: SparkSession, ask: Any, left: Any) -> None:
    """DDL commits by itself here: the table is there before the commit, and does not count."""
    for mode in ("error", "ignore", "append"):
        with pytest.raises(LookupError), transaction():
            write_table(frame(spark, 9), "shop.properties", "made", mode, create=True)  # type: ignore[arg-type]
            assert ask("select * from made") == []
            raise LookupError
        assert left() == []
    # What others have written into it meanwhile is theirs.
    with pytest.raises(LookupError), transaction():
        write_table(frame(spark, 9), "shop.properties", "made", "error")
        ask("insert into made values ('theirs', 1)")
        raise LookupError
    assert ask("select * from made") == [("theirs", 1)]
    assert left() == ["made"]
    # Within one transaction the second write finds it.
    with transaction():
        write_table(frame(spark, 9), "shop.properties", "two", "error")
        write_table(frame(spark, 9, 12), "shop.properties", "two", create=True)
    assert ask("select count(*) from two") == [(12,)]


def test_while_it_is_being_created_no_other_write_takes_it_for_a_table(spark: SparkSession, ask: Any) -> None:
    with transaction() as tx:
        write_table(frame(spark, 9), "shop.properties", "made", "ignore")
        suspended = suspend()
        with pytest.raises(OperationalError, match=f"`made` in shop is being created by {tx.gtrid}"):
            write_table(frame(spark, 9), "shop.properties", "made", "ignore")
        assert suspended is not None
        resume(suspended)
    assert ask("select count(*) from made") == [(9,)]


def test_upsert_touches_no_row_of_another_key(spark: SparkSession, ask: Any) -> None:
    ask("create table people (id int auto_increment primary key, mail varchar(50) not null, n int, alias int unique)")
    ask("create unique index by_mail on people (mail)")
    df = spark.createDataFrame([("a@x", 1), ("b@x", 2)], "mail string, n int")
    # Neither the number that the server gives, nor NULL, meets another row.
    for _ in range(2):
        write_table(df, "shop.properties", "people", "upsert", keys=["mail"])
    assert ask("select mail, n from people order by mail") == [("a@x", 1), ("b@x", 2)]
    with pytest.raises(ProgrammingError, match=r"has another unique index, on \(alias\), and an upsert would update"):
        write_table(df.selectExpr("mail", "n as alias"), "shop.properties", "people", "upsert", keys=["mail"])
    with pytest.raises(ProgrammingError, match=r"has another unique index, on \(id\)"):
        write_table(df.selectExpr("mail", "n as id"), "shop.properties", "people", "upsert", keys=["mail"])
    with pytest.raises(ProgrammingError, match=r"needs a unique index on \(n\)"):
        write_table(df, "shop.properties", "people", "upsert", keys=["n"])
    ask("create table parts (name varchar(50), unique key (name(3)))")
    with pytest.raises(ProgrammingError, match=r"needs a unique index on \(name\)"):
        write_table(df.selectExpr("mail as name"), "shop.properties", "parts", "upsert", keys=["name"])


def test_no_two_rows_may_have_the_same_key_as_the_table_tells_them_apart(spark: SparkSession, ask: Any) -> None:
    ask("create table names (name varchar(20) character set utf8mb4 collate utf8mb4_general_ci unique, n int)")
    write_table(spark.createDataFrame([("a", 1)], "name string, n int"), "shop.properties", "names")
    for given, message in (([("b", 2), ("B", 3)], "only one could stay"), ([(None, 2)], "a key must have a value")):
        df = spark.createDataFrame(given, "name string, n int")
        with pytest.raises(DataError, match=message):
            write_table(df, "shop.properties", "names", "upsert", keys=["name"])
    df = spark.createDataFrame([("A", 4)], "name string, n int")
    write_table(df, "shop.properties", "names", "upsert", keys=["name"])
    assert ask("select * from names") == [("a", 4)]
    # A new table's keys are told apart by their code points.
    df = spark.createDataFrame([("a", 1), ("A", 2), ("á", 3)], "name string, n int")
    write_table(df, "shop.properties", "exact", "upsert", keys=["name"], create=True)
    assert ask("select count(*) from exact") == [(3,)]


def test_a_snapshot_that_is_too_old_is_told(spark: SparkSession, server: MySQLServer, rows: Any) -> None:
    write_table(frame(spark, 1), "shop.properties", "landed")
    message = "has read in shop before, with isolation level repeatable-read"
    with only_innodb(server), pytest.raises(NotSupportedError, match=message), transaction():
        connect("shop.properties").cursor().execute("select * from landed")
        write_table(frame(spark, 1, 3), "shop.properties", "landed")
    with only_innodb(server), transaction(isolation="read-committed"):
        connect("shop.properties").cursor().execute("select * from landed")
        write_table(frame(spark, 1, 2), "shop.properties", "landed")
    with transaction(isolation="repeatable-read"):  # MyISAM has no snapshots
        connect("shop.properties").cursor().execute("select * from landed")
        write_table(frame(spark, 2, 3), "shop.properties", "landed")
    with transaction():  # what it has only written is no snapshot
        connect("shop.properties").cursor().execute("insert into landed values (3, 'new')")
        write_table(frame(spark, 4, 5), "shop.properties", "landed")
        write_table(frame(spark, 5, 6), "shop.properties", "landed")
    assert rows() == new(6)


def test_what_cannot_be_written_to(
    spark: SparkSession, server: MySQLServer, sources: Path, ask: Any, rows: Any
) -> None:
    ask("create view seen as select * from landed", "create table loose (id bigint, who text) engine = myisam")
    with pytest.raises(NotSupportedError, match="`seen` in shop is a view"):
        write_table(frame(spark, 3), "shop.properties", "seen")
    with pytest.raises(NotSupportedError, match="`loose` in shop is of the engine MyISAM"):
        write_table(frame(spark, 3), "shop.properties", "loose")
    with pytest.raises(ProgrammingError, match="strategy='direct' is not possible: overwrite is one statement"):
        write_table(frame(spark, 3), "shop.properties", "landed", "overwrite", strategy="direct")
    server.execute(
        "create user 'few'@'%' identified by 'few'",
        "grant select on one.landed to 'few'@'%'",
    )
    url = server.url("one").replace("txpool@", "few@")
    (sources / "few.properties").write_text(f"driver = pymysql\nmode = last-resource\nurl = {url}\npassword = few\n")
    (sources / "few.properties").chmod(0o600)
    with pytest.raises(
        ProgrammingError, match=r"strategy='direct' is not possible: few \(mode=last-resource\) cannot prepare"
    ):
        write_table(frame(spark, 3), "few.properties", "landed", strategy="direct")
    with pytest.raises(ProgrammingError, match=r"has to insert in `one`.`landed`, and the account of few may not"):
        write_table(frame(spark, 3), "few.properties", "landed")
    server.execute("grant insert on one.landed to 'few'@'%'")
    with pytest.raises(ProgrammingError, match=r"has to delete in `one`.`landed`"):
        write_table(frame(spark, 3), "few.properties", "landed", "overwrite")
    with pytest.raises(ProgrammingError, match="needs staging tables in the datasource's database: grant create"):
        write_table(frame(spark, 3), "few.properties", "landed")
    describe(sources, server, "alone", "mode = local")
    for options in ({"mode": "append"}, {"mode": "overwrite"}):
        with pytest.raises(ProgrammingError, match=r"alone \(mode=local\) can only be alone in a transaction"):
            write_table(frame(spark, 3), "alone.properties", "landed", **options)  # type: ignore[arg-type]
    assert rows() == []
    each: dict[str, Any] = {"atomicity": "partition", "transaction_id": "each"}
    assert write_table(frame(spark, 3), "alone.properties", "landed", **each).rows == 3


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_rows_that_are_lost_are_missed(
    spark: SparkSession, server: MySQLServer, rows: Any, left: Any, mode: Literal["append", "upsert"]
) -> None:
    def lose(progress: Progress) -> None:
        if progress.done == 3:
            ((number,),) = server.execute("select id from txpool_spark_staging", database="one")
            server.execute(f"delete from txpool_spark_{number} limit 1", database="one")

    with pytest.raises(OperationalError, match=r"tasks had staged 10 rows for `one`\.`landed`, and 9 are there"):
        keys = ["id"] if mode == "upsert" else []
        write_table(frame(spark, 10), "shop.properties", "landed", mode, keys=keys, strategy="staged", progress=lose)
    assert (rows(), left()) == ([], [])


def test_rows_that_a_server_crash_may_have_cost_are_not_moved(
    spark: SparkSession, server: MySQLServer, rows: Any, left: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> AbstractContextManager[None]:
        """Called once all rows are staged, and before any is moved."""
        server.restart("immediate")
        return nullcontext()

    def write() -> None:
        write_table(frame(spark, 10), "shop.properties", "landed", strategy="staged")

    monkeypatch.setattr(MySQLTables, "watch", crash)
    with pytest.raises(OperationalError, match="the server has been started anew since tasks began to stage rows"):
        write()
    assert (rows(), left()) == ([], [])
    with only_innodb(server):
        write()  # InnoDB has a log of them
    assert (rows(), left()) == (new(10), [])


def test_rows_are_staged_in_innodb_where_nothing_else_is_allowed(
    spark: SparkSession, server: MySQLServer, ask: Any, left: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(progress: Progress) -> None:
        if progress.done == 3:
            engines.extend(ask(f"select engine from information_schema.tables where {is_staging}"))

    def write(first: int) -> None:
        df = frame(spark, first, first + 10)
        write_table(df, "shop.properties", "landed", strategy="staged", progress=look)

    engines: list[tuple[str]] = []
    is_staging = "table_name regexp '^txpool_spark_[0-9a-f]{24}$'"
    write(0)
    with only_innodb(server):
        write(10)
    if not server.is_mariadb:
        with monkeypatch.context() as patched:
            patched.setattr(server, "settings", ("--disabled-storage-engines=MyISAM,ARCHIVE",))
            server.restart()
            write(20)
        server.restart()
    assert engines == [("MyISAM",), ("InnoDB",)] + ([] if server.is_mariadb else [("InnoDB",)])
    assert (ask("select count(*) from landed"), left()) == ([(10 * len(engines),)], [])


def test_a_rerun_writes_nothing(spark: SparkSession, ask: Any, rows: Any, left: Any) -> None:
    def write(rows: int = 10, **options: Any) -> Any:
        return write_table(frame(spark, rows), "shop.properties", "landed", transaction_id="nightly", **options)

    with pytest.raises(LookupError), transaction():
        write()
        raise LookupError
    first, again = write(), write()
    assert (first.strategy, again.strategy, again.rows, again.attempts) == ("direct", "skipped", 10, 0)
    with pytest.raises(ProgrammingError, match=r"has written 10 rows .* its plan was different"):
        write(11)
    assert (rows(), left()) == (new(10), [])
    assert ask("select transaction_id, target, partitions, row_count from txpool_spark_writes") == [
        (b"nightly", b"`one`.`landed`", 3, 10)
    ]


def test_partitions_that_commit_by_themselves(spark: SparkSession, ask: Any, rows: Any, left: Any) -> None:
    options: dict[str, Any] = {"atomicity": "partition", "transaction_id": "nightly"}
    report = write_table(frame(spark, 10), "shop.properties", "landed", **options)
    assert (report.strategy, report.rows, report.partitions) == ("each", 10, 3)
    again = write_table(frame(spark, 10), "shop.properties", "landed", **options)
    assert (again.strategy, again.rows) == ("skipped", 10)
    ask(
        "delete from landed",
        "update txpool_spark_writes set row_count = null",
        "delete from txpool_spark_partitions where part = 1",
    )
    write_table(frame(spark, 10), "shop.properties", "landed", **options)
    assert rows() == new(3, 6)  # the one whose record was lost
    assert left() == []


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_rows_do_not_vanish_in_a_temporary_table_of_that_name(
    spark: SparkSession, ask: Any, rows: Any, left: Any, mode: Literal["append", "overwrite"]
) -> None:
    """In its session it hides the table, behind the qualified name, too, and no COMMIT keeps its rows."""
    with pytest.raises(NotSupportedError, match="a temporary table hides"), transaction():
        connect("shop.properties").cursor().execute("create temporary table landed (id bigint, who varchar(20))")
        write_table(frame(spark, 5), "shop.properties", "landed", mode)
    assert (rows(), left()) == ([], [])
    write_table(frame(spark, 5), "shop.properties", "landed", mode)
    assert rows() == new(5)


def test_an_account_that_may_only_insert_can_append(
    spark: SparkSession, server: MySQLServer, sources: Path, ask: Any
) -> None:
    account = "'writer'@'%'"
    ask(f"drop user if exists {account}", f"create user {account} identified by '{server.password}'")
    ask(f"grant create, drop, select, insert, update, delete, lock tables on one.* to {account}")
    if not server.is_mariadb:  # the driver lists what tasks have prepared
        ask(f"grant xa_recover_admin on *.* to {account}")
    describe(sources, server, "writer", "user = writer")
    write_table(frame(spark, 2), "writer.properties", "landed")
    ask("create table two.landed (id bigint primary key, who varchar(20))", f"grant insert on two.landed to {account}")
    try:
        write_table(frame(spark, 5), "writer.properties", "two.landed")
        assert ask("select count(*) from two.landed") == [(5,)]
    finally:
        ask("drop table two.landed", f"drop user {account}")
