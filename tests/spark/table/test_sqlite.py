"""write_table() into SQLite: the driver writes alone, in its branch, when the job has ended."""

from __future__ import annotations

import datetime as dt
import os
import signal
import sqlite3
import subprocess
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from txpool.datasource import DataSource, connect
from txpool.errors import DataError, IntegrityError, NotSupportedError, ProgrammingError
from txpool.spark import Progress, write_table
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.conftest import Databases

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources")]


@pytest.fixture(autouse=True)
def ledger(databases: Databases, sources: Path) -> Path:
    """A file of SQLite's that is marked, with a table; and one of the same name in PostgreSQL."""
    settings = "driver = sqlite3\nmode = cmr\nurl = sqlite:///ledger.db\ndriver.timeout = 60\npool.max-size = 1\n"
    (sources / "ledger.properties").write_text(settings)
    made = "create table landed (id integer primary key, who text)"
    databases.execute("one", made)
    with closing(sqlite3.connect("ledger.db")) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute(made)
    DataSource.from_properties("ledger.properties").xids_table().create()  # type: ignore[attr-defined]
    return sources / "ledger.db"


def frame(spark: SparkSession, *span: int, who: str = "new", partitions: int = 3) -> DataFrame:
    return spark.range(*span, numPartitions=partitions).selectExpr(f"'{who}' as who", "id")


def ask(query: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect("ledger.db")) as connection, connection:
        return connection.execute(query, values).fetchall()


def rows() -> list[tuple[Any, ...]]:
    return ask("select id, who from landed order by id")


def new(*ids: int, who: str = "new") -> list[tuple[int, str]]:
    return [(number, who) for number in range(*ids)]


def left() -> list[tuple[Any, ...]]:
    """Tables beside the ones that belong there."""
    return ask("select name from sqlite_master where type = 'table' and name not in ('landed', 'xids') order by name")


def test_all_partitions_land_with_what_else_is_in_the_transaction(spark: SparkSession, databases: Databases) -> None:
    with pytest.raises(LookupError), transaction():
        write_table(frame(spark, 100), "ledger.properties", "landed")
        write_table(frame(spark, 100), "one.properties", "landed")
        raise LookupError  # and it is as if it had not been
    assert rows() == databases.rows("one", "table landed") == databases.prepared() == []
    with transaction() as tx:
        report = write_table(frame(spark, 100), "ledger.properties", "landed")
        # The second is one of empty partitions, and spells a name otherwise.
        few = frame(spark, 100, 101).withColumnRenamed("id", "ID")
        assert write_table(few, "ledger.properties", "main.landed").write == 1
        write_table(frame(spark, 7), "one.properties", "landed")
        assert rows() == []
    assert (report.gtrid, report.write, report.table, report.mode) == (tx.gtrid, 0, '"main"."landed"', "append")
    assert (report.strategy, report.partitions, report.attempts, report.rows) == ("collected", 3, 3, 100)
    assert report.bytes > 100 * 8
    assert report.seconds > 0
    assert rows() == new(101)
    assert databases.rows("one", "select id, who from landed order by id") == new(7)
    assert (databases.prepared(), left()) == ([], [])
    # By itself it is a transaction of its own, and a DataFrame without partitions is one without rows.
    assert write_table(spark.createDataFrame([], "id bigint, who string"), "ledger.properties", "landed").rows == 0
    with pytest.raises(IntegrityError, match="UNIQUE"):
        write_table(frame(spark, 99, 120), "ledger.properties", "landed")
    assert rows() == new(101)


def test_modes(spark: SparkSession) -> None:
    write_table(frame(spark, 5), "ledger.properties", "landed")
    write_table(frame(spark, 3, 8, who="newer"), "ledger.properties", "landed", "upsert", keys=["id"])
    assert rows() == new(3) + new(3, 8, who="newer")
    with transaction():
        write_table(frame(spark, 4), "ledger.properties", "landed", "overwrite")
        assert len(rows()) == 8  # who reads meanwhile sees the old ones
    assert rows() == new(4)
    assert write_table(frame(spark, 9), "ledger.properties", "landed", "ignore").strategy == "skipped"
    with pytest.raises(ProgrammingError, match=r'"main"."landed" exists already'):
        write_table(frame(spark, 9), "ledger.properties", "landed", "error")
    with pytest.raises(ProgrammingError, match=r'there is no table "main"."elsewhere" in ledger'):
        write_table(frame(spark, 9), "ledger.properties", "elsewhere")
    assert write_table(frame(spark, 9), "ledger.properties", 'main."else ""where"', "error").rows == 9
    assert ask('select count(*) from "else ""where"') == [(9,)]
    assert write_table(frame(spark, 2), "ledger.properties", "keyed", "upsert", keys=["id"], create=True).rows == 2
    with pytest.raises(sqlite3.IntegrityError):
        ask("insert into keyed values ('old', 1)")
    assert rows() == new(4)


def test_no_two_rows_may_have_the_same_key_as_the_table_tells_them_apart(spark: SparkSession) -> None:
    ask("create table names (name text collate nocase not null unique, n integer)")
    write_table(spark.createDataFrame([("a", 1)], "name string, n int"), "ledger.properties", "names")
    for given, message in (([("b", 2), ("B", 3)], "only one could stay"), ([(None, 2)], "a key must have a value")):
        df = spark.createDataFrame(given, "name string, n int")
        with pytest.raises(DataError, match=message):
            write_table(df, "ledger.properties", "names", "upsert", keys=["name"])
    with pytest.raises(ProgrammingError, match=r"needs a unique index on \(n\)"):
        write_table(df, "ledger.properties", "names", "upsert", keys=["n"])
    df = spark.createDataFrame([("A", 4)], "name string, n int")
    write_table(df, "ledger.properties", "names", "upsert", keys=["name"])
    assert ask("select * from names") == [("a", 4)]


_VALUES = {
    "yes boolean": (True, 1),
    "tiny tinyint": (-128, -128),
    "big bigint": (2**63 - 1, 2**63 - 1),
    "narrow float": (0.5, 0.5),
    "wide double": (-1e300, -1e300),
    "few decimal(15,5)": (Decimal("-1234567890.12345"), -1234567890.12345),
    "many decimal(38,10)": (Decimal("1E-10"), "0.0000000001"),
    "word string": ("naïve 𝄞\0x", "naïve 𝄞\0x"),
    "raw binary": (b"\0\xff", b"\0\xff"),
    "day date": (dt.date(1, 1, 1), "0001-01-01"),
    "clock time(6)": (dt.time(23, 59, 59, 1), "23:59:59.000001"),
    "moment timestamp": (dt.datetime(1969, 7, 20, 20, 17, 40, tzinfo=dt.UTC), "1969-07-20 20:17:40.000000+00:00"),
    "wall timestamp_ntz": (dt.datetime(1582, 10, 4, 1, 2, 3, 4), "1582-10-04 01:02:03.000004"),
    "list array<int>": ([1, None], "[1,null]"),
    "both struct<a: int, b: string>": ((1, "x"), '{"a":1,"b":"x"}'),
    "pairs map<string, date>": ({"k": dt.date(2026, 1, 2)}, '{"k":"2026-01-02"}'),
}


def test_values_come_out_as_they_were(spark: SparkSession) -> None:
    names = [declared.split()[0] for declared in _VALUES]
    given, expected = zip(*_VALUES.values(), strict=True)
    df = spark.createDataFrame([given, [None] * len(names)], ", ".join(_VALUES))
    # Into a table that is made for it, and into columns without any type, which convert nothing.
    ask(f"create table bare ({', '.join(names)})")
    for table in ("made", "bare"):
        write_table(df, "ledger.properties", table, create=True)
        value = {"made": "few", "bare": "cast(few as real)"}[table]
        found = ask(f"select {', '.join(names).replace('few', value)} from {table} order by yes desc")
        assert found == [expected, (None,) * len(names)]
    assert ask("select few from bare")[0] == ("-1234567890.12345",)


@pytest.mark.parametrize(
    ("column", "declared", "message"),
    [
        ("id as amount", "text", "column amount is bigint, and .*amount is TEXT: SQLite would change some values"),
        ("id as amount", "real", "column amount is bigint, and .*amount is REAL"),
        ("'007' as amount", "decimal(10,2)", "column amount is string"),
        ("'007' as amount", "int", "column amount is string"),
        ("cast(id as decimal(16,2)) as amount", "numeric", r"column amount is decimal\(16,2\).*keeps 15 digits"),
        ("id / 3 as amount", "int", "column amount is double"),
        ("current_date() as amount", "numeric", "column amount is date"),
        ("interval '1' day as amount", "text", "column amount is interval day"),
        ("id as amuont", "int", r"column amuont is not in .*: did you mean amount\? No task was started"),
        ("id as other", "int, other as (amount * 2)", "column other is generated"),
        ("id as other", "int not null, other", "column amount of .* must have a value"),
        (
            "id as other",
            "integer not null, other integer, primary key (amount, other)",
            "column amount of .* must have a value",
        ),
    ],
)
def test_what_sqlite_would_change_is_refused_before_the_job(
    spark: SparkSession, column: str, declared: str, message: str
) -> None:
    ask(f"create table strange (amount {declared})")
    with pytest.raises(ProgrammingError, match=message):
        write_table(spark.range(3).selectExpr(column), "ledger.properties", "strange")
    assert ask("select * from strange") == []


def test_what_is_no_number_is_refused(spark: SparkSession) -> None:
    df = spark.sql("select 1 as id, double('nan') as x")
    with pytest.raises(Exception, match=r"column x: .* it is NaN, which SQLite would store as NULL"):
        write_table(df, "ledger.properties", "strange", create=True)
    assert left() == []


def test_only_the_driver_writes(spark: SparkSession) -> None:
    ask("create view seen as select * from landed")
    options: dict[str, Any]
    for options in ({"strategy": "direct"}, {"strategy": "staged"}, {"atomicity": "partition", "transaction_id": "x"}):
        with pytest.raises(NotSupportedError, match=r"ledger \(driver=sqlite3\) is a file with one writer"):
            write_table(frame(spark, 3), "ledger.properties", "landed", **options)
    with pytest.raises(NotSupportedError, match="seen in ledger is a view"):
        write_table(frame(spark, 3), "ledger.properties", "seen")
    assert rows() == []


def test_the_file_is_free_while_tasks_work(spark: SparkSession, sources: Path) -> None:
    go = sources / "go"

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while not go.exists():
            threading.Event().wait(0.05)
        yield from batches

    ask("insert into landed values (-1, 'old')")
    told: list[Progress] = []
    with transaction():
        writer = threading.Thread(target=lambda: (ask("insert into landed values (-2, 'old')"), go.touch()))
        writer.start()
        df = frame(spark, 10).mapInArrow(wait, "who string, id bigint")
        write_table(df, "ledger.properties", "landed", transaction_id="nightly", progress=told.append)
        writer.join()
    assert rows() == [(-2, "old"), (-1, "old"), *new(10)]
    assert (told[-1].partitions, told[-1].done, told[-1].rows) == (3, 3, 10)


def test_what_the_transaction_has_locked_it_reads_itself(spark: SparkSession) -> None:
    """Without a write-ahead log whoever writes much keeps all others from reading."""
    ask("pragma journal_mode = delete")
    wide = spark.range(40_000).selectExpr("id", "repeat('x', 200) as who")
    with transaction():
        connect("ledger.properties").execute("create table own (id integer)")
        write_table(wide, "ledger.properties", "landed")
        with (
            pytest.raises(sqlite3.OperationalError, match="locked"),
            closing(sqlite3.connect("ledger.db", timeout=0)) as other,
        ):
            other.execute("select * from landed")
        write_table(spark.range(3), "ledger.properties", "own", transaction_id="a")
        write_table(spark.range(4), "ledger.properties", "made", create=True, transaction_id="b")
        assert write_table(spark.range(4), "ledger.properties", "made", transaction_id="b").strategy == "skipped"
    assert ask("select (select count(*) from landed), (select count(*) from own), (select count(*) from made)") == [
        (40_000, 3, 4)
    ]


def test_who_cannot_join_is_told_before_the_job(spark: SparkSession, sources: Path) -> None:
    (sources / "other.properties").write_text("driver = sqlite3\nmode = last-resource\nurl = sqlite:///other.db\n")
    ran = sources / "ran"

    def mark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ran.touch()
        yield from batches

    with pytest.raises(ProgrammingError, match=r"only one such datasource can be in a transaction"), transaction():
        connect("other.properties").execute("create table t (id integer)")
        write_table(frame(spark, 3).mapInArrow(mark, "who string, id bigint"), "ledger.properties", "landed")
    assert not ran.exists()
    assert rows() == []


def test_a_rerun_writes_nothing(spark: SparkSession) -> None:
    def write(rows: int = 10, **options: Any) -> Any:
        return write_table(frame(spark, rows), "ledger.properties", "landed", transaction_id="nightly", **options)

    with pytest.raises(LookupError), transaction():
        write()
        raise LookupError
    first, again = write(), write()
    assert (first.strategy, again.strategy, again.rows, again.attempts) == ("collected", "skipped", 10, 0)
    with pytest.raises(ProgrammingError, match=r"has written 10 rows .* its plan was different"):
        write(11)
    with pytest.raises(ProgrammingError, match=r"of other data"):
        write(mode="overwrite")
    assert rows() == new(10)
    assert ask("select transaction_id, target, partitions, row_count from txpool_spark_writes") == [
        ("nightly", '"main"."landed"', 3, 10)
    ]


_BEGINNING = """
    import os, sys, threading, time
    from pathlib import Path

    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    from txpool.tm import manager
    from txpool.datasource import connect
    from txpool.tm.demarcation.block import transaction
    from txpool.spark import write_table

    os.chdir(sys.argv[1])
    spark = SparkSession.builder.getOrCreate()
    manager.configure(node_name="driver", log_url="sqlite:///txlog")
    frame = spark.range(0, 4000, numPartitions=2).selectExpr("'new' as who", "id")
"""


def script(source: str) -> str:
    return textwrap.dedent(_BEGINNING) + textwrap.dedent(source)


def test_a_rerun_after_the_driver_was_killed_ends_what_it_meets(
    spark: SparkSession, spark_process: Callable[..., subprocess.Popen[str]], databases: Databases, sources: Path
) -> None:
    """Between the ledger's commit, which is the decision, and that of PostgreSQL."""
    source = script("""
        with transaction():
            for name in ("ledger.properties", "one.properties"):
                write_table(frame, name, "landed", transaction_id="nightly")
    """)
    driver = spark_process(source, str(sources), env={"TXPOOL_FAILPOINTS": "coordinator.decided=kill"})
    assert driver.wait(timeout=240) == -signal.SIGKILL
    assert (len(rows()), len(databases.prepared())) == (4000, 3)
    again = spark.range(0, 4000, numPartitions=2).selectExpr("'new' as who", "id")
    with transaction():
        for name in ("ledger.properties", "one.properties"):
            assert write_table(again, name, "landed", transaction_id="nightly").strategy == "skipped"
    assert rows() == databases.rows("one", "select id, who from landed order by id") == new(4000)
    assert databases.prepared() == []


def test_rows_that_executors_have_lost_are_not_computed_again(
    spark_process: Callable[..., subprocess.Popen[str]], databases: Databases, sources: Path
) -> None:
    """A second computation might be of other rows: it fails, and nothing of the transaction stays."""
    source = script("""
        def mark(batches):
            yield from batches
            executor = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
            Path(here, f"ran-{TaskContext.get().partitionId()}-{executor}").touch()

        def watch():
            while len([*Path(here).glob("ran-*")]) < 2 or spark.sparkContext.statusTracker().getActiveJobsIds():
                time.sleep(0.1)
            Path(here, "waiting").touch()

        here = os.getcwd()
        threading.Thread(target=watch, daemon=True).start()
        try:
            with transaction():
                connect("one.properties").cursor().execute("insert into landed values (1, 'new')")
                write_table(frame.mapInArrow(mark, "who string, id bigint"), "ledger.properties", "landed")
        except Exception as error:
            print(error)
        spark.stop()
    """)
    with closing(sqlite3.connect("ledger.db", isolation_level=None)) as connection:
        connection.execute("begin immediate")  # the driver waits for this, while executors have the rows
        driver = spark_process(source, str(sources), master="local-cluster[2,1,1024]")
        while not (sources / "waiting").exists() and driver.poll() is None:
            threading.Event().wait(0.1)
        for executor in {int(ran.name.rpartition("-")[2]) for ran in sources.glob("ran-*")}:
            os.kill(executor, signal.SIGKILL)
    output, _ = driver.communicate(timeout=600)
    assert "Checkpoint block" in output
    assert rows() == databases.rows("one", "table landed") == databases.prepared() == []
