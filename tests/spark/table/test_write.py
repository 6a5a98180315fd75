"""write_table(): a DataFrame's rows are in the table once, or not at all, whichever way they went."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from recovery import RecoveryManager
from tests.spark.conftest import describe
from tests.support.waiting import until
from txpool.datasource import DataSource, connect
from txpool.demo.server import EmbeddedPostgres
from txpool.errors import DataError, NotSupportedError, OperationalError, ProgrammingError, TransactionRolledBack
from txpool.spark import Progress, write_table
from txpool.spark.commit.listing import list_attempts, roll_back
from txpool.spark.commit.slots import SlotReservation, SlotSession, try_reserve
from txpool.spark.table import table_write
from txpool.tm.demarcation.block import transaction
from txpool.tm.demarcation.calls import begin, commit, resume, rollback, suspend
from txpool.tm.manager import configure, get_manager
from txpool.tm.subordinate import Subordinate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.conftest import Databases

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources")]


@pytest.fixture(autouse=True)
def landed(databases: Databases) -> None:
    for name in (databases.one, databases.two):
        databases.execute(name, "create table landed (id bigint primary key, who text, n int default 7)")


def frame(spark: SparkSession, *span: int, who: str = "new", partitions: int = 2) -> DataFrame:
    return spark.range(*span, numPartitions=partitions).selectExpr(f"'{who}' as who", "id")


def rows(databases: Databases, name: str = "one") -> list[tuple[Any, ...]]:
    return databases.rows(name, "select id, who from landed order by id")


def staging(databases: Databases) -> list[tuple[Any, ...]]:
    return databases.rows("one", "select relname from pg_class where relnamespace = to_regnamespace('txpool_spark')")


def new(*ids: int) -> list[tuple[int, str]]:
    return [(number, "new") for number in range(*ids)]


@pytest.mark.parametrize("strategy", ["direct", "staged"])
def test_all_partitions_land_with_what_else_is_in_the_transaction(
    spark: SparkSession, databases: Databases, strategy: Any
) -> None:
    with transaction() as tx:
        report = write_table(frame(spark, 100, partitions=3), "one.properties", "landed", strategy=strategy)
        # The second has empty partitions, and another spelling of a name.
        few = frame(spark, 100, 101, partitions=3).withColumnRenamed("id", "ID")
        assert write_table(few, "one.properties", "public.landed", strategy=strategy).rows == 1
        assert write_table(frame(spark, 9), "two.properties", "landed").strategy == "direct"
        assert rows(databases) == rows(databases, "two") == []
        assert len(databases.prepared()) == {"direct": 3 + 1 + 2, "staged": 2}[strategy]
        connect("two.properties").cursor().execute("insert into landed values (-1, 'new')")
    assert (report.gtrid, report.write, report.table, report.mode) == (tx.gtrid, 0, "public.landed", "append")
    assert (report.strategy, report.partitions, report.attempts, report.rows) == (strategy, 3, 3, 100)
    assert report.bytes > 100 * 20
    assert report.seconds > 0
    assert rows(databases) == new(101)
    assert rows(databases, "two") == new(-1, 9)
    assert databases.rows("one", "select distinct n from landed") == [(7,)]
    assert databases.prepared() == staging(databases) == []


@pytest.mark.parametrize("strategy", ["direct", "staged"])
def test_no_partitions_are_no_rows(spark: SparkSession, databases: Databases, strategy: Any) -> None:
    nothing = spark.range(0)
    assert nothing.rdd.getNumPartitions() == 0
    told: list[Progress] = []
    report = write_table(nothing, "one.properties", "landed", strategy=strategy, progress=told.append)
    assert (report.strategy, report.partitions, report.rows) == (strategy, 0, 0)
    assert [(each.partitions, each.rows) for each in told] == [(0, 0)] * len(told)
    databases.execute("one", "insert into landed values (-5, 'old')")
    write_table(nothing, "one.properties", "landed", "overwrite")
    assert rows(databases) == databases.prepared() == staging(databases) == []


def test_outside_of_a_transaction_it_is_one(spark: SparkSession, databases: Databases) -> None:
    assert write_table(frame(spark, 10), DataSource.from_properties("one.properties"), "landed").strategy == "direct"
    with pytest.raises(Exception, match=r"(?s)duplicate key.*This was partition [01]"):
        write_table(frame(spark, 9, 20), "one.properties", "landed")
    assert rows(databases) == new(10)
    assert databases.prepared() == []


@pytest.mark.parametrize("strategy", ["direct", "staged"])
def test_a_rollback_takes_all_of_it_back(spark: SparkSession, databases: Databases, strategy: Any) -> None:
    begin()
    write_table(frame(spark, 10), "one.properties", "landed", strategy=strategy)
    rollback()
    begin()
    write_table(frame(spark, 10), "one.properties", "landed", strategy=strategy)
    with pytest.raises(Exception, match="duplicate key"):
        write_table(frame(spark, 0, 4).union(frame(spark, 0, 4)), "two.properties", "landed", strategy="staged")
    with pytest.raises(TransactionRolledBack):
        commit()
    assert rows(databases) == rows(databases, "two") == []
    assert databases.prepared() == staging(databases) == []


def test_overwrite_shows_the_old_rows_until_it_commits(spark: SparkSession, databases: Databases) -> None:
    databases.execute("one", "insert into landed values (-5, 'old'), (3, 'old')")
    with transaction():
        report = write_table(frame(spark, 10), "one.properties", "landed", "overwrite")
        assert rows(databases) == [(-5, "old"), (3, "old")]
    assert report.strategy == "staged"
    assert rows(databases) == new(10)
    assert staging(databases) == []


def test_upsert_updates_what_has_the_same_keys(spark: SparkSession, databases: Databases) -> None:
    databases.execute("one", "insert into landed values (-5, 'old', 1), (3, 'old', 1)")
    assert write_table(frame(spark, 10), "one.properties", "landed", "upsert", keys=["id"]).rows == 10
    assert rows(databases) == [(-5, "old"), *new(10)]
    assert databases.rows("one", "select id, n from landed where n = 1 order by id") == [(-5, 1), (3, 1)]

    twice = frame(spark, 5, 15).union(frame(spark, 14, 16, who="another"))
    with pytest.raises(DataError, match="key id = 14: 2 rows have it"):
        write_table(twice, "one.properties", "landed", "upsert", keys=["id"])
    databases.execute("one", "create unique index on landed (who, id, n)")
    nobody = spark.createDataFrame([(20, None, 5)], "id bigint, who string, n int")
    with pytest.raises(DataError, match="key n = 5, id = 20, who = None: a key must have a value"):
        write_table(nobody, "one.properties", "landed", "upsert", keys=["n", "id", "who"])
    assert rows(databases) == [(-5, "old"), *new(10)]


@pytest.mark.parametrize(("mode", "keys"), [("overwrite", []), ("upsert", ["id"])])
def test_what_went_direct_is_neither_overwritten_nor_updated(
    spark: SparkSession, databases: Databases, mode: Any, keys: list[str]
) -> None:
    databases.execute("one", "insert into landed values (-5, 'old')")
    refused = rf"txp1:driver:.*: {mode} of public.landed in one: .* direct, .* strategy staged.* Nothing was done"
    with pytest.raises(TransactionRolledBack), transaction():
        write_table(frame(spark, 10), "one.properties", "landed", strategy="direct")
        last = max(spark.sparkContext.statusTracker().getJobIdsForGroup(None))
        with pytest.raises(ProgrammingError, match=refused):
            write_table(frame(spark, 10, 20), "one.properties", "public.landed", mode, keys=keys)
        assert max(spark.sparkContext.statusTracker().getJobIdsForGroup(None)) == last
    assert rows(databases) == [(-5, "old")]
    with transaction():
        write_table(frame(spark, 0), "one.properties", "landed", strategy="direct")
        write_table(frame(spark, 10), "two.properties", "landed", strategy="direct")
        write_table(frame(spark, 10), "one.properties", "landed", strategy="staged")
        write_table(frame(spark, 5, 15, who="again"), "one.properties", "landed", mode, keys=keys)
    kept = [(-5, "old"), *new(5)] if mode == "upsert" else []
    assert rows(databases) == [*kept, *((number, "again") for number in range(5, 15))]
    assert databases.prepared() == staging(databases) == []


@pytest.mark.parametrize("asked", [1, 3])
def test_partitions_that_the_user_has_coalesced_stay_so(spark: SparkSession, databases: Databases, asked: int) -> None:
    most = 4 * spark.sparkContext.defaultParallelism
    df = frame(spark, 60, partitions=3 * most)
    assert write_table(df, "one.properties", "landed").partitions == most
    df = frame(spark, 60, 120, partitions=3 * most)
    assert write_table(df.coalesce(asked).filter("id < 1000"), "one.properties", "landed").partitions == asked
    df = frame(spark, 120, 180, partitions=3 * most)
    assert write_table(df.coalesce(most + 2), "one.properties", "landed", max_partitions=2).partitions == 2
    assert rows(databases) == new(180)


@pytest.mark.costly
def test_few_rows_that_spark_holds_are_written_by_one_task(spark: SparkSession, databases: Databases) -> None:
    df = frame(spark, 30, partitions=3).cache()
    try:
        assert write_table(df, "one.properties", "landed").partitions == 3  # its tasks share the work of making them
        assert write_table(df.selectExpr("id + 30 as id", "who"), "one.properties", "landed").partitions == 3
        assert df.count() == 30
        with transaction():
            assert write_table(df, "one.properties", "landed", "overwrite").partitions == 1
        more = df.selectExpr("id + 30 as id", "who")
        assert write_table(more, "one.properties", "landed").partitions == 3
        assert rows(databases) == new(60)
        assert write_table(df, "one.properties", "landed", "upsert", keys=["id"], max_partitions=2).partitions == 2
    finally:
        df.unpersist()
    large = spark.range(0, 1, 1, 2).selectExpr("id + 60 as id", "repeat(uuid(), 100000) as who").cache()
    try:
        assert large.count() == 1
        assert write_table(large, "one.properties", "landed").partitions == 2
    finally:
        large.unpersist()
    assert rows(databases)[:-1] == new(60)


def test_a_table_is_made_when_asked_for(spark: SparkSession, databases: Databases) -> None:
    mixed = frame(spark, 3).selectExpr("id as `Id`", "who", "array(id) as many", "map(who, id) as deep")
    with pytest.raises(ProgrammingError, match=r"no table public.fresh in one.*create=True"):
        write_table(mixed, "one.properties", "fresh")
    with transaction():
        assert write_table(mixed, "one.properties", "fresh", create=True).strategy == "staged"
        assert databases.rows("one", "select to_regclass('fresh')") == [(None,)]
    assert databases.rows("one", 'select "Id", who, many, deep from fresh order by 1') == [
        (number, "new", [number], {"new": number}) for number in range(3)
    ]
    assert write_table(mixed, "one.properties", "fresh", "ignore").strategy == "skipped"
    with pytest.raises(ProgrammingError, match="exists already"):
        write_table(mixed, "one.properties", "fresh", "error")
    write_table(frame(spark, 3), "one.properties", "second", "error")
    write_table(frame(spark, 3), "one.properties", "third", "upsert", keys=["id"], create=True)
    assert databases.rows("one", "select count(*) from second") == [(3,)]
    with pytest.raises(psycopg.errors.UniqueViolation):
        databases.execute("one", "insert into third (who, id) values ('again', 0)")


def test_what_does_not_fit_is_said_before_any_task_runs(spark: SparkSession, databases: Databases) -> None:
    databases.execute(
        "one",
        """
        create table strict (id int, x numeric(6, 2), must text not null, twice int generated always as (id * 2) stored,
            spot point, mood text[]);
        create view seen as select * from landed
        """,
    )
    good = spark.range(3).selectExpr("id", "'x' as must")
    wrong: dict[str, tuple[DataFrame, dict[str, Any]]] = {
        r"column idd is not in public.strict: did you mean id\?": (good.withColumnRenamed("id", "idd"), {}),
        r"column must of public.strict must have a value": (good.drop("must"), {}),
        r"columns id and ID are both public.strict.id": (good.selectExpr("*", "1 as ID"), {}),
        r"column must is bigint, and public.strict.must is text": (good.selectExpr("id", "id as must"), {}),
        r"column x is decimal\(10,3\), .* is numeric\(6,2\): digits would be lost": (
            good.selectExpr("*", "cast(1 as decimal(10, 3)) as x"),
            {},
        ),
        r"column x is double": (good.selectExpr("*", "1d as x"), {}),
        r"column twice is generated": (good.selectExpr("*", "1 as twice"), {}),
        r"column spot is string, and public.strict.spot is point": (good.selectExpr("*", "'' as spot"), {}),
        r"column mood is array<array<string>>": (good.selectExpr("*", "array(array('')) as mood"), {}),
        r"unique index on \(id\)": (good, {"mode": "upsert", "keys": ["id"]}),
        r"key 'x' is not among the columns": (good, {"mode": "upsert", "keys": ["x"]}),
        r"upsert needs keys": (good, {"mode": "upsert"}),
        r"mode is 'replace': it is one of append": (good, {"mode": "replace"}),
        r"max_partitions is 0: it is a number from 1": (good, {"max_partitions": 0}),
        r"strategy='direct' is not possible: overwrite": (good, {"mode": "overwrite", "strategy": "direct"}),
    }
    last = max(spark.sparkContext.statusTracker().getJobIdsForGroup(None), default=-1)
    for message, (df, options) in wrong.items():
        with pytest.raises(ProgrammingError, match=message):
            write_table(df, "one.properties", "strict", **options)
    for nothing in ("", None):
        with pytest.raises(ProgrammingError, match="give the table's name"):
            write_table(good, "one.properties", nothing)  # type: ignore[arg-type]
    with pytest.raises(NotSupportedError, match=r"public\.seen in one is a view"):
        write_table(good, "one.properties", "seen")
    assert max(spark.sparkContext.statusTracker().getJobIdsForGroup(None), default=-1) == last
    with pytest.raises(Exception, match="column id: a value does not fit into integer"):
        write_table(good.selectExpr("id + 3000000000 as id", "must"), "one.properties", "strict")
    assert databases.rows("one", "select * from strict") == databases.prepared() == []


def test_no_task_reads_before_what_earlier_runs_have_left_is_settled(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark runs those before a shuffle to plan what follows: they would read what an earlier run is yet to change."""
    ran, awaited, before = tmp_path / "ran", Event(), list[bool]()
    result = Future.result

    def settle(*_: Any) -> None:
        until(lambda: awaited.is_set() or ran.exists())
        before.append(ran.exists())

    def waiting(self: Future[Any], timeout: float | None = None) -> Any:
        awaited.set()
        return result(self, timeout)

    def reading(batches: Iterator[Any]) -> Iterator[Any]:
        ran.touch()
        yield from batches

    monkeypatch.setattr(table_write, "settle_earlier_runs", settle)
    monkeypatch.setattr(Future, "result", waiting)
    shuffled = spark.range(9).mapInArrow(reading, "id bigint").groupBy("id").count()
    write_table(shuffled.selectExpr("id", "'new' as who"), "one.properties", "landed")
    assert before == [False]
    assert ran.exists()


def test_what_the_driver_has_locked_goes_staged(spark: SparkSession, databases: Databases) -> None:
    databases.execute("one", "insert into landed values (3, 'old')")
    with pytest.raises(ProgrammingError, match=r"has locks of public\.landed on the driver"), transaction():
        connect("one.properties").cursor().execute("delete from landed")
        write_table(frame(spark, 10), "one.properties", "landed", strategy="direct")
    assert rows(databases) == [(3, "old")]
    with transaction():
        connect("one.properties").cursor().execute("delete from landed")
        assert write_table(frame(spark, 10), "one.properties", "landed").strategy == "staged"
    assert rows(databases) == new(10)


def test_rows_that_a_server_crash_has_emptied_are_missed(spark: SparkSession, databases: Databases) -> None:
    databases.execute("one", "insert into landed values (3, 'old')")

    def crash(progress: Progress) -> None:
        if progress.done == 2:
            databases.server.stop("immediate")
            databases.server.start()

    with pytest.raises(OperationalError, match=r"attempt \d+ had staged 5 rows for public.landed, and 0 are there"):
        write_table(frame(spark, 10), "one.properties", "landed", "overwrite", progress=crash)
    assert rows(databases) == [(3, "old")]
    assert staging(databases) == []


def test_recovery_leaves_the_staging_table_of_a_living_driver(spark: SparkSession, databases: Databases) -> None:
    seen = []

    def scan(progress: Progress) -> None:
        if progress.done == 2:
            one = DataSource.from_properties("one.properties")
            RecoveryManager(log=get_manager().log, datasources=[one], backoff=0).scan()
            seen.append(len(staging(databases)))

    assert write_table(frame(spark, 10), "one.properties", "landed", "overwrite", progress=scan).rows == 10
    assert seen == [1]
    assert rows(databases) == new(10)


def test_progress_counts_up_to_all(spark: SparkSession, databases: Databases) -> None:
    told: list[Progress] = []
    report = write_table(frame(spark, 300_000), "one.properties", "landed", progress=told.append)
    assert (told[-1].partitions, told[-1].done, told[-1].rows, told[-1].bytes) == (2, 2, 300_000, report.bytes)
    assert [each.rows for each in told] == sorted(each.rows for each in told)


def test_a_marked_database_is_written_staged(spark: SparkSession, databases: Databases, sources: Path) -> None:
    describe(sources, "ledger", databases.url("two"), "mode = cmr", "cmr.immediate-cleanup = true")
    ledger = DataSource.from_properties("ledger.properties")
    ledger.xids_table().create()  # type: ignore[attr-defined]
    with transaction():
        assert write_table(frame(spark, 10), ledger, "landed").strategy == "staged"
        assert write_table(frame(spark, 10), "one.properties", "landed").strategy == "direct"
    assert rows(databases) == rows(databases, "two") == new(10)
    with pytest.raises(ProgrammingError, match=r"ledger \(mode=cmr\) cannot prepare"):
        write_table(frame(spark, 10), ledger, "landed", strategy="direct")
    assert databases.prepared() == []


@pytest.fixture(scope="module")
def small() -> Iterator[EmbeddedPostgres]:
    """A server with five slots for prepared transactions."""
    with EmbeddedPostgres(databases=["few"], settings={"max_prepared_transactions": "5"}) as server:
        with psycopg.connect(server.dsn("few"), autocommit=True) as connection:
            connection.execute("create table landed (id bigint primary key, who text)")
        yield server


def in_small(server: EmbeddedPostgres, query: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.dsn("few"), autocommit=True) as connection:
        return connection.execute(query).fetchall()


@pytest.fixture
def few(small: EmbeddedPostgres, sources: Path) -> DataSource:
    (sources / "secret").write_text(small.password)
    (sources / "secret").chmod(0o600)
    describe(sources, "few", small.url("few"))
    return DataSource.from_properties("few.properties")


@pytest.mark.costly
def test_many_partitions_need_few_slots(spark: SparkSession, few: DataSource, small: EmbeddedPostgres) -> None:
    with pytest.raises(OperationalError, match=r"200 partitions need 200 .* and 5 are free"):
        write_table(frame(spark, 400, partitions=200), few, "landed", strategy="direct", max_partitions=200)
    kept = SlotReservation(few, 2)  # another job's
    assert kept.enough
    assert write_table(frame(spark, 3, partitions=2), few, "landed").strategy == "direct"
    assert write_table(frame(spark, 3, 6, partitions=3), few, "landed").strategy == "staged"
    kept.release()
    assert write_table(frame(spark, 6, 9, partitions=3), few, "landed").strategy == "direct"
    report = write_table(frame(spark, 10, 410, partitions=200), few, "landed", max_partitions=200)
    assert (report.strategy, report.partitions, report.rows) == ("staged", 200, 400)
    report = write_table(frame(spark, 410, 810, partitions=200), few, "landed")  # four for each core
    assert (report.strategy, report.partitions, report.rows) == ("staged", 8, 400)
    report = write_table(frame(spark, 810, 1210, partitions=200), few, "landed", max_partitions=3)
    assert (report.strategy, report.partitions, report.rows) == ("direct", 3, 400)
    assert in_small(small, "select count(*), count(distinct id) from landed") == [(1209, 1209)]


def test_a_session_that_was_lost_while_spark_planned(few: DataSource, small: EmbeddedPostgres) -> None:
    with ThreadPoolExecutor(1) as beside, SlotSession(few, beside) as session:
        beside.submit(lambda: None).result()  # it is open
        in_small(
            small,
            "select pg_terminate_backend(pid, 60000) from pg_stat_activity where datname = 'few' "
            "and pid <> pg_backend_pid()",
        )
        kept = try_reserve(few, 2, session)
    assert kept.enough
    kept.release()


def test_the_session_of_a_reservation_lists_and_keeps_its_slots(few: DataSource, small: EmbeddedPostgres) -> None:
    kept = SlotReservation(few, 2)
    with transaction() as ambient:
        suspend()
        resume(Subordinate(ambient.gtrid, write=0, partition=0, attempt=7))
        task = few.connect()
        task.cursor().execute("insert into landed values (-1, 'task')")
        task.close()
        suspended = suspend()
        assert isinstance(suspended, Subordinate)
        suspended.prepare()
        resume(ambient)
        for _ in range(2):
            found = list_attempts([few], gtrid=ambient.gtrid, write=0, sessions={"few": kept.session()})
            assert ([*found.attempts], found.unreachable) == ([7], {})
    held = "select count(*), count(backend_xmin) from pg_locks join pg_stat_activity using (pid)"
    assert in_small(small, f"{held} where locktype = 'advisory'") == [(2, 0)]
    roll_back(found.attempts.values(), [few])
    assert in_small(small, "select from pg_prepared_xacts") == []
    in_small(small, "select pg_terminate_backend(pid, 60000) from pg_locks where locktype = 'advisory'")
    assert kept.session() is None
    kept.release()


def test_a_session_that_nobody_takes_is_closed(few: DataSource, monkeypatch: pytest.MonkeyPatch) -> None:
    close, closed = few.driver_adapter.close, list[Any]()
    monkeypatch.setattr(type(few.driver_adapter), "close", lambda _, raw: (close(raw), closed.append(raw)))
    with ThreadPoolExecutor(1) as beside, SlotSession(few, beside):
        pass
    assert [raw.closed for raw in closed] == [True]


def test_a_refused_reservation_keeps_no_slot(few: DataSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even until the server has seen the end of its session."""
    close, unseen = few.driver_adapter.close, list[Any]()
    monkeypatch.setattr(type(few.driver_adapter), "close", lambda _, raw: unseen.append(raw))
    refused, kept = SlotReservation(few, 200), SlotReservation(few, 5)
    monkeypatch.undo()
    kept.release()
    for raw in unseen:
        close(raw)
    assert (refused.enough, kept.enough, len(unseen)) == (False, True, 1)


def test_a_stranger_who_takes_the_slots_costs_a_retry(
    spark: SparkSession, few: DataSource, small: EmbeddedPostgres
) -> None:
    dsn = small.dsn("few")

    def take(batches: Iterator[Any]) -> Iterator[Any]:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for number in range(5):
                try:
                    connection.execute(f"begin; select 1; prepare transaction 'stranger {number}'")
                except psycopg.Error:  # all are taken, or another task has done it
                    connection.rollback()
        yield from batches

    df = frame(spark, 5000, 5010).mapInArrow(take, "who string, id bigint")
    try:
        report = write_table(df, few, "landed")
        assert report.strategy == "staged"
        assert in_small(small, "select count(*) from landed where id >= 5000") == [(10,)]
    finally:
        for (gid,) in in_small(small, "select gid from pg_prepared_xacts"):
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(f"rollback prepared '{gid}'")


def test_it_needs_a_decision_log(spark: SparkSession, databases: Databases) -> None:
    configure(node_name="nobody")
    with pytest.raises(ProgrammingError, match=r"log\.url = sqlite:///txlog"):
        write_table(frame(spark, 4), "one.properties", "landed")
    assert rows(databases) == []


@pytest.mark.parametrize("strategy", ["direct", "staged"])
def test_the_staging_table_belongs_to_the_role_that_the_sessions_take_on(
    spark: SparkSession, databases: Databases, sources: Path, strategy: Any
) -> None:
    options = "pool.initial-sql = set role spark_owner", "prepared.owners = spark_owner"
    describe(sources, "role", databases.url("one"), *options)
    grants = "grant all on landed to spark_owner", "grant all on schema public to spark_owner"
    for statement in (
        "create role spark_owner",
        *grants,
        "drop schema if exists txpool_spark cascade",
        "create schema txpool_spark authorization spark_owner",
    ):
        databases.execute("one", statement)
    try:
        with transaction():
            write_table(frame(spark, 10), "role.properties", "landed", strategy=strategy)
        assert rows(databases) == new(10)
        assert staging(databases) == []
    finally:
        databases.execute("one", "drop owned by spark_owner cascade")
        databases.execute("one", "drop role spark_owner")
