"""Spark's own methods within a transaction: what their functions would write past it is refused, in every form."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import InheritableThread, SparkContext

import txpool
from tests.spark.commit.bypassing import (
    FORMS,
    OUTSIDE,
    WRITERS,
    Job,
    by_partition,
    by_rdd,
    frame,
    keep,
    upstream,
    write,
    write_apart,
    write_in_thread,
    write_late,
    write_outside,
    written,
)
from tests.support.forking import in_child
from txpool.datasource import DataSource
from txpool.jobs import properties
from txpool.spark import foreach_partition
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Databases

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
]

_TIMEOUT = 60


@pytest.fixture(autouse=True)
def landed(databases: Databases, sources: Path) -> None:
    databases.execute("one", "create table landed (id bigint)")


def ids(databases: Databases) -> list[int]:
    return [number for (number,) in databases.rows("one", "select id from landed order by id")]


def tried(writer: Any) -> Callable[[str, int], int]:
    """A writer that leaves a refusal in a file, so that its task goes on: to lose each worker takes seconds."""

    def attempt(folder: str, number: int) -> int:
        try:
            writer(folder, number)
        except txpool.ProgrammingError as error:
            Path(folder, f"refusal-{number}").write_text(str(error))
        return number

    return attempt


def require_refused(form: Job, spark: SparkSession, writer: Any, folder: Path, gtrid: str) -> None:
    form(spark, tried(writer), str(folder))
    for number in range(1, 5):
        file = folder / f"refusal-{number}"
        require_refusal(file.read_text(), gtrid)
        file.unlink()


def require_refusal(text: str, gtrid: str) -> None:
    assert f"the job of this Spark task was started within {gtrid}: this would commit by itself" in text
    assert "Nothing was written. Run the function by txpool.spark.foreach_partition()" in text


@pytest.mark.costly
def test_every_form_is_refused_and_nothing_stays(spark: SparkSession, databases: Databases, sources: Path) -> None:
    spark.sparkContext.parallelize([str(sources)] * 2, 2).foreach(keep)
    with pytest.raises(Exception, match="Nothing was written") as caught, transaction() as tx:
        txpool.connect("one.properties").cursor().execute("insert into landed values (0)")
        for form in (*FORMS, upstream, written):
            require_refused(form, spark, write, sources, tx.gtrid)
        for writer in WRITERS:
            require_refused(by_rdd, spark, writer, sources, tx.gtrid)
        by_partition(spark, write, str(sources))
    require_refusal(str(caught.value), tx.gtrid)
    assert ids(databases) == []
    assert databases.prepared() == []
    # And it is not, once the transaction has ended.
    by_rdd(spark, write, str(sources))
    assert ids(databases) == [1, 2, 3, 4]


def test_what_is_declared_to_be_outside_is_not_refused(
    spark: SparkSession, databases: Databases, sources: Path
) -> None:
    with pytest.raises(ZeroDivisionError), transaction():
        for form in OUTSIDE:
            form(spark, write_outside, str(sources))
        by_rdd(spark, write_apart, str(sources))
        txpool.transactional("not_supported")(by_rdd)(spark, write, str(sources))
        tx = txpool.suspend()
        by_rdd(spark, write, str(sources))
        txpool.resume(tx)
        # Within a task that is a part of the transaction, too; and what is a part of it stays that.
        foreach_partition(frame(spark), lambda rows: [write_outside(str(sources), row.id) for row in rows])
        assert len(ids(databases)) == 4 * (len(OUTSIDE) + 4)
        with pytest.raises(Exception, match="was started within"):
            foreach_partition(frame(spark), lambda rows: [write_in_thread(str(sources), row.id) for row in rows])
        raise ZeroDivisionError
    assert len(ids(databases)) == 4 * (len(OUTSIDE) + 4)
    assert databases.prepared() == []


@pytest.mark.costly
def test_threads_of_the_driver(spark: SparkSession, databases: Databases, sources: Path) -> None:
    """Each has its own, or none; of one that has inherited the property, what it began while that was open counts."""
    ended = threading.Event()
    found: dict[str, object] = {}

    def attempt(name: str, job: Callable[[], object] = lambda: by_rdd(spark, write, str(sources))) -> None:
        try:
            found[name] = job()
        except Exception as error:
            found[name] = str(error)

    def work_in_another() -> None:
        with transaction() as tx:
            attempt(f"another {tx.gtrid}")

    def begun_before() -> None:
        folder = str(sources)
        spark.sparkContext.parallelize([5], 1).foreach(lambda row: write_late(folder, row))

    def go_on() -> None:
        attempt("heir")
        ended.wait(_TIMEOUT)
        attempt("heir, later")

    def run(kind: type[threading.Thread], target: Any, *args: Any) -> None:
        thread = kind(target=target, args=args)
        thread.start()
        thread.join()

    heir = InheritableThread(target=go_on)
    late = InheritableThread(target=attempt, args=("late", begun_before))
    with transaction() as tx:
        heir.start()
        late.start()
        while not (sources / "late").exists():
            ended.wait(0.05)
        run(threading.Thread, attempt, "none")
        run(threading.Thread, work_in_another)
        run(InheritableThread, work_in_another)
        while "heir" not in found:
            ended.wait(0.05)
    ended.set()
    (sources / "ended").touch()
    heir.join()
    late.join()
    assert found.pop("none") is None
    assert f"was started within {tx.gtrid}:" in str(found.pop("late"))
    assert found.pop("heir, later") is None
    assert f"was started within {tx.gtrid}:" in str(found.pop("heir"))
    assert len(found) == 2
    for name, said in found.items():
        assert f"was started within {name.removeprefix('another ')}:" in str(said)
    assert ids(databases) == sorted([1, 2, 3, 4] * 2)


def test_asyncio_tasks_share_a_thread(spark: SparkSession, databases: Databases, sources: Path) -> None:
    """Whose job it is cannot be told: it is refused as long as one of them is open, also when another has ended."""

    async def work() -> None:
        begun, other_ended = asyncio.Event(), asyncio.Event()

        async def longer() -> None:
            with transaction() as tx:
                begun.set()
                await other_ended.wait()
                with pytest.raises(Exception, match=f"{tx.gtrid}, or beside it by one who shares its thread"):
                    by_rdd(spark, write, str(sources))

        async def shorter() -> None:
            await begun.wait()
            with transaction():
                pass
            other_ended.set()

        await asyncio.gather(longer(), shorter())
        by_rdd(spark, write, str(sources))

    asyncio.run(work())
    assert ids(databases) == [1, 2, 3, 4]


def test_a_stream_that_was_started_within_goes_on_after_it(
    spark: SparkSession, databases: Databases, sources: Path
) -> None:
    folder = str(sources)

    def batch(rows: Any, number: int) -> None:
        rows.foreachPartition(lambda rows: [write(folder, row.value) for row in rows])

    def start(name: str) -> Any:
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        trigger = rows.writeStream.foreachBatch(batch).option("checkpointLocation", str(sources / name))
        return trigger.trigger(processingTime="100 milliseconds").start()

    with transaction() as tx:
        early = start("early")
        with pytest.raises(Exception, match=f"was started within {tx.gtrid}"):
            early.awaitTermination(_TIMEOUT)
        # One that has nothing to do yet.
        (sources / "in").mkdir()
        late = spark.readStream.schema("value bigint").json(str(sources / "in"))
        query = late.writeStream.foreachBatch(batch).option("checkpointLocation", str(sources / "late")).start()
    assert ids(databases) == []
    (sources / "a.json").write_text('{"value": 7}\n')
    (sources / "a.json").rename(sources / "in" / "a.json")
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert ids(databases) == [7]


@pytest.mark.usefixtures("sources")
def test_a_forked_child_leaves_its_parents_spark_alone(spark: SparkSession) -> None:
    def child() -> None:
        with transaction():
            assert properties._properties is None

    properties._properties = None  # not even where the child is the first to begin a transaction
    in_child(child)
    with transaction():
        in_child(child)
        assert properties._properties is not None
        assert spark.range(3).count() == 3


def test_a_session_that_is_created_within(
    spark: SparkSession, databases: Databases, sources: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    source, folder = DataSource.from_properties("one.properties"), str(sources)

    def by_datasource() -> None:
        spark.sparkContext.parallelize([1], 1).foreach(lambda row: source.connect().close())

    def created_within() -> txpool.Transaction:
        """Spark's own note of its session is not there before the transaction."""
        with monkeypatch.context() as patch:
            patch.setattr(SparkContext, "_active_spark_context", None)
            return txpool.begin()

    def warnings_given() -> list[str]:
        return [text for text in caplog.messages if "there was no chance to tell its jobs" in text]

    def by_connecting() -> None:
        txpool.connect("one.properties")
        by_rdd(spark, write, folder)

    def by_job() -> None:
        foreach_partition(spark.sparkContext.emptyRDD(), list)
        by_rdd(spark, write, folder)

    # A datasource on its way to the tasks, a connection of the driver's, a job of ours: any of these is a chance.
    for work in (by_datasource, by_connecting, by_job):
        tx = created_within()
        with pytest.raises(Exception, match=f"was started within {tx.gtrid}:"):
            work()
        txpool.rollback()
    assert ids(databases) == []
    assert warnings_given() == []
    tx = created_within()
    by_rdd(spark, write, folder)
    txpool.rollback()
    assert ids(databases) == [1, 2, 3, 4]
    (text,) = warnings_given()
    assert text.startswith(tx.gtrid)
    assert text.endswith("Create the session before the transaction begins")


@pytest.fixture
def interruptible(spark: SparkSession) -> Iterator[SparkSession]:
    """Java's thread of this one also knows which session is active: other tests need that."""
    yield spark
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # type: ignore[union-attr]


def interrupted(spark: SparkSession) -> None:
    """Ctrl-C while Spark is at work for this thread."""
    timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    spark.sparkContext._jvm.java.lang.Thread.sleep(2000)
    time.sleep(_TIMEOUT)  # whichever of both it comes to


def test_an_interrupt_takes_the_thread_that_was_told(
    interruptible: SparkSession, databases: Databases, sources: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spark = interruptible

    def lost() -> list[str]:
        return [text for text in caplog.messages if "there was no chance to tell later jobs" in text]

    # Any call that takes a connection tells it again.
    with pytest.raises(ZeroDivisionError), transaction(timeout=_TIMEOUT) as tx:
        with pytest.raises(KeyboardInterrupt):
            interrupted(spark)
        txpool.connect("one.properties")
        assert set(spark.sparkContext.getJobTags()) == {tx.gtrid}
        with pytest.raises(Exception, match=f"was started within {tx.gtrid}:"):
            by_rdd(spark, write, str(sources))
        raise ZeroDivisionError
    assert not set(spark.sparkContext.getJobTags())
    assert ids(databases) == []
    # Who leaves by the interrupt begins no job after it.
    with pytest.raises(KeyboardInterrupt), transaction():
        interrupted(spark)
    assert lost() == []
    with transaction() as tx:
        with pytest.raises(KeyboardInterrupt):
            interrupted(spark)
        by_rdd(spark, write, str(sources))
    assert ids(databases) == [1, 2, 3, 4]
    (text,) = lost()
    assert text.startswith(tx.gtrid)


def test_an_interrupt_while_spark_is_told(
    spark: SparkSession, databases: Databases, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was told is not known then: it is told again."""
    tell = SparkContext.setLocalProperty

    def interrupt(self: SparkContext, key: str, value: str) -> None:
        tell(self, key, value)
        raise KeyboardInterrupt

    with transaction():
        pass
    with monkeypatch.context() as patch:
        patch.setattr(SparkContext, "setLocalProperty", interrupt)
        with pytest.raises(KeyboardInterrupt) as caught, transaction():  # kept, as a notebook does
            pass
    txpool.suspend()
    by_rdd(spark, write, str(sources))
    assert ids(databases) == [1, 2, 3, 4]
    del caught


@pytest.mark.slow
def test_a_transaction_that_outlives_its_session(
    spark: SparkSession, databases: Databases, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is begun in the next session after it is none of it, though a thread has inherited that."""
    ended, found = threading.Event(), []

    def heir() -> None:
        ended.wait(_TIMEOUT)
        found.append(by_rdd(spark, write, str(sources)))

    with transaction() as tx:
        monkeypatch.setattr(properties._properties, "context", "one that was stopped")
        txpool.connect("one.properties")
        with pytest.raises(Exception, match=f"was started within {tx.gtrid}:"):
            by_rdd(spark, write, str(sources))
        thread = InheritableThread(target=heir)
        thread.start()
    ended.set()
    thread.join()
    assert found == [None]
    assert ids(databases) == [1, 2, 3, 4]
