"""map_partitions(): what a function yields in each partition is of the attempt whose rows commit."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext

import txpool
from recovery import RecoveryManager
from tests.spark.commit.partition_functions import insert
from txpool.errors import AlreadyDone, ProgrammingError, TransactionRolledBack
from txpool.spark import map_partitions
from txpool.spark.commit.before_job import note_locations
from txpool.spark.task.datasources import TaskDatasources
from txpool.spark.task.task import PartitionTask
from txpool.tm.demarcation.block import transaction
from txpool.tm.manager import get_manager

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Databases
    from tests.support.spark import LocalCluster

pytestmark = pytest.mark.spark

_TABLE = "create table landed (id bigint primary key, attempt bigint)"


@pytest.mark.usefixtures("sources")
def test_yields_come_back_in_order_and_rows_with_the_transaction(spark: SparkSession, databases: Databases) -> None:
    databases.execute("one", _TABLE)
    rdd = spark.sparkContext.parallelize([3, 1, 2, 5, 4], 3)
    with transaction():
        yields = map_partitions(rdd, insert)
        assert [row for row, _ in yields] == [3, 1, 2, 5, 4]
        assert databases.rows("one", "select * from landed") == []
        # A DataFrame, a list, partitions without a row, and more than Spark sends with the task's own end.
        large = map_partitions(spark.range(3, numPartitions=4), lambda rows: [bytes(3_000_000) for _ in rows])
        assert [len(each) for each in large] == [3_000_000] * 3
        assert map_partitions(spark.sparkContext.emptyRDD(), insert) == []
    assert databases.rows("one", "select id, attempt from landed order by id") == sorted(yields)
    assert len({attempt for _, attempt in yields}) == 3
    with pytest.raises(ZeroDivisionError), transaction():
        assert len(map_partitions(spark.sparkContext.parallelize([6, 7], 2), insert)) == 2
        raise ZeroDivisionError
    assert len(databases.rows("one", "select id from landed")) == 5
    assert databases.prepared() == []
    # Under a name it is done once; what it has yielded is not kept.
    named: dict[str, Any] = {"transaction_id": "load-1", "record_in": "one.properties"}
    with transaction():
        assert len(map_partitions(spark.sparkContext.parallelize([6], 1), insert, **named)) == 1
    with pytest.raises(AlreadyDone, match="load-1"), transaction():
        map_partitions(spark.sparkContext.parallelize([7], 1), insert, **named)
    assert databases.rows("one", "select id from landed where id > 5") == [(6,)]


@pytest.mark.usefixtures("sources")
def test_what_cannot_come_back_is_an_error_and_nothing_stays(spark: SparkSession, databases: Databases) -> None:
    databases.execute("one", _TABLE)
    rdd = spark.sparkContext.parallelize(range(4), 2)

    class Sent:
        """Fine in the task, and not on the driver."""

        def __reduce__(self) -> Any:
            return int, ("no number",)

    wrong: list[tuple[Callable[[Iterator[Any]], Any], str]] = [
        (lambda rows: [*insert(rows), threading.Lock()], "cannot pickle"),
        (lambda rows: len(list(insert(rows))), "map_partitions.. collects what its function yields, .* returned int"),
        (lambda rows: [*insert(rows), Sent()], "invalid literal for int"),
    ]
    for function, message in wrong:
        with pytest.raises(TransactionRolledBack, match="Spark write 0 failed"), transaction():
            with pytest.raises(Exception, match=message) as caught:
                map_partitions(rdd, function)
            assert caught.value.__notes__[-1].endswith("can only roll back, and nothing of the write stays.")
    assert databases.rows("one", "select * from landed") == []
    assert databases.prepared() == []
    with pytest.raises(ProgrammingError, match=r"map_partitions\(\) is a part of a transaction, and there is none"):
        map_partitions(rdd, insert)


@pytest.mark.usefixtures("sources")
def test_a_retry_adopts_only_where_no_yields_are_wanted(databases: Databases) -> None:
    databases.execute("one", "create table landed (id bigint, attempt bigint)")
    try:
        with pytest.raises(ZeroDivisionError), transaction() as tx:
            source = txpool.DataSource.from_properties("one.properties")
            datasources, places = (
                TaskDatasources.pack([source], {source.name: source}),
                note_locations(tx.log, [source], timeouts={}),
            )
            found: dict[bool, list[int]] = {}
            for write, yielding in enumerate((False, True)):
                task = PartitionTask(tx.gtrid, write, 1, insert, datasources, places, yielding=yielding)
                found[yielding] = []
                for number in (0, 1):
                    # As a worker has it of Spark.
                    here = {"partitionId": 0, "attemptNumber": number, "taskAttemptId": 10 + number, "stageId": 0}
                    TaskContext._setTaskContext(None)
                    TaskContext._setTaskContext(TaskContext(**here, localProperties={}))
                    (packed,) = task(0, iter([1]))
                    found[yielding].append(packed["attempt"])
            assert found == {False: [10, 10], True: [10, 11]}
            assert len(databases.prepared()) == 3
            raise ZeroDivisionError
    finally:
        TaskContext._setTaskContext(None)
    log = get_manager().log
    assert log is not None
    log.finish(tx.gtrid)
    RecoveryManager(log=log, datasources=[source], backoff=0).scan()
    assert databases.prepared() == []


# One cluster, and a transaction for each way to lose an attempt that is prepared: four rows in two partitions.
_SCRIPT = """
    import json, logging, os, sys
    from contextlib import suppress
    from pathlib import Path

    from pyspark.sql import SparkSession

    import txpool
    from tests.spark.losing_tasks import first_time, kill_executor
    from tests.spark.commit.partition_functions import insert
    from txpool.tm import ambient, manager
    from txpool.tm.demarcation.block import transaction
    from txpool.spark import map_partitions
    from txpool.spark.commit import monitor
    from txpool.spark.commit import self_deadlock

    logging.basicConfig(level=logging.WARNING)
    folder = sys.argv[1]
    os.chdir(folder)


    def worker_dies_prepared(rows):
        yield from insert(rows)
        if first_time(Path(folder, "worker_dies_prepared")):
            ambient.current().after_completion(lambda status: os._exit(1))


    def executor_dies_prepared(rows):
        yield from insert(rows)
        if first_time(Path(folder, "executor_dies_prepared")):
            ambient.current().after_completion(lambda status: kill_executor())


    def past_it(rows):
        # As somebody does who does not know of map_partitions().
        connection = txpool.connect(f"{folder}/one.properties")
        for row in rows:
            connection.cursor().execute("insert into landed values (%s, -1)", [row])
        connection.commit()
        yield from ()


    @txpool.transactional
    def all_of_it():
        spark = SparkSession.builder.getOrCreate()
        txpool.connect("one.properties").cursor().execute("insert into landed values (100, -1)")
        return refusal(spark)


    def refusal(spark):
        try:
            spark.sparkContext.parallelize(range(200, 204), 2).mapPartitions(past_it).collect()
        except Exception as error:
            return str(error)


    manager.configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    refusals = [all_of_it()]  # the session was created within the transaction
    spark = SparkSession.builder.getOrCreate()
    monitor.GRACE = 3600.0  # whatever is struck is not struck for this
    self_deadlock.PERIOD = 0.2  # however often it looks, a retry that waits for its own partition is not its business
    said = {}
    for number, write in enumerate((worker_dies_prepared, executor_dies_prepared)):
        with transaction() as tx:
            yields = map_partitions(spark.sparkContext.parallelize(range(4 * number, 4 * number + 4), 2), write)
        said[write.__name__] = [yields, tx.gtrid in tx._log.finished()]
    with suppress(ZeroDivisionError), transaction():
        refusals.append(refusal(spark))
        raise ZeroDivisionError
    print(json.dumps([said, refusals]))
    spark.stop()
"""


def test_an_attempt_that_is_lost_takes_its_yields_and_its_rows_with_it(
    local_cluster: LocalCluster, databases: Databases, tmp_path: Path
) -> None:
    (tmp_path / "one.properties").write_text(
        f"name = one\ndriver = psycopg\nurl = {databases.url('one')}\npassword = ${{env:DATABASE_PASSWORD}}\n"
    )
    databases.execute("one", _TABLE)
    output = local_cluster(_SCRIPT, str(tmp_path), env={"DATABASE_PASSWORD": databases.server.password})
    said, refusals = json.loads(output.splitlines()[-1])
    assert set(said) == {"worker_dies_prepared", "executor_dies_prepared"}
    assert all((tmp_path / way).exists() for way in said)
    yields = [each for some, _ in said.values() for each in some]
    assert [row for row, _ in yields] == list(range(8))
    assert all(finished for _, finished in said.values())
    rows = databases.rows("one", "select id, attempt from landed where id < 100 order by id")
    assert [list(row) for row in rows] == yields
    assert databases.prepared() == []
    # Spark's own methods within a transaction, with no register(), in processes of their own; one of the two
    # transactions has committed, and so the driver's own row is there, and theirs is not.
    assert len(refusals) == 2
    assert all("was started within txp1:driver:" in refusal for refusal in refusals)
    assert databases.rows("one", "select id from landed where id >= 100") == [(100,)]
