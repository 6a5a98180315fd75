"""Tasks that work in MariaDB and MySQL, whose branches are named before anybody knows how many there will be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txpool
import txpool.datasource
from tests.support.mysql import MySQLServer
from txpool.spark import foreach_partition
from txpool.tm.manager import configure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Databases
    from tests.support.mysql import RequireDriver

pytestmark = pytest.mark.spark

FILES = ("pg.properties", "maria.properties", "mysql.properties")


class Site:
    """The working directory: a decision log, and a file for each database, with its password by reference."""

    def __init__(self, folder: Path, databases: Databases, mariadb: MySQLServer, mysql8: MySQLServer) -> None:
        self.databases = databases
        self.servers = {"maria": mariadb, "mysql": mysql8}
        databases.execute("one", "create table landed (id bigint primary key, who int)")
        urls = {"pg": ("psycopg", databases.url("one"), databases.server.password)}
        for (name, server), driver in zip(self.servers.items(), ("pymysql", "mysqlclient"), strict=True):
            server.empty()
            server.execute("create table landed (id bigint primary key, who int) engine=innodb", database="one")
            urls[name] = (driver, server.url("one"), server.password)
        for name, (driver, url, password) in urls.items():
            secret = folder / f"{name}.secret"
            secret.write_text(password)
            secret.chmod(0o600)
            text = f"name = {name}\ndriver = {driver}\nurl = {url}\npassword = ${{file:{secret}}}\n"
            (folder / f"{name}.properties").write_text(f"{text}pool.check-bypass = 0\n")

    def landed(self) -> list[list[int]]:
        query = "select id from landed order by id"
        found = [self.databases.rows("one", query)]
        found += [server.execute(query, database="one") for server in self.servers.values()]
        return [[number for (number,) in rows] for rows in found]

    def prepared(self) -> list[str]:
        return [*self.databases.prepared(), *(name for server in self.servers.values() for name in server.names())]


@pytest.fixture
def site(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    databases: Databases,
    mariadb: MySQLServer,
    mysql8: MySQLServer,
    require_driver: RequireDriver,
) -> Iterator[Site]:
    require_driver("mysqlclient")
    monkeypatch.chdir(tmp_path)
    manager = configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    yield Site(tmp_path, databases, mariadb, mysql8)
    for datasource in set(txpool.datasource.known().values()):
        datasource.close()
    manager.close()


def writer(*files: str, then: Callable[[int], object] = lambda partition: None) -> Callable[[Iterator[Any]], object]:
    """A user's writer: every row into all of these datasources, and `then` once they are written."""

    def write(rows: Iterator[Any]) -> None:
        from pyspark import TaskContext

        from txpool.datasource import connect

        partition = TaskContext.get().partitionId()
        cursors = [connect(file).cursor() for file in files]
        for row in rows:
            for cursor in cursors:
                cursor.execute("insert into landed values (%s, %s)", [row.id, partition])
        then(partition)

    return write


@pytest.mark.costly
def test_what_tasks_write_commits_with_what_the_driver_writes(spark: SparkSession, site: Site) -> None:
    with txpool.transaction() as tx:
        report = foreach_partition(spark.range(20).repartition(3), writer(*FILES))
        assert report.branches == 9
        names = site.prepared()
        assert len(names) == 9
        assert sum(name.endswith(".0") for name in names) == 6, "of a number of branches that nobody knew"
        for file in FILES:
            txpool.connect(file).cursor().execute("insert into landed values (-1, -1)")
    assert site.landed() == [[*range(-1, 20)]] * 3
    assert site.prepared() == []
    assert tx._log.finished() == set()  # type: ignore[union-attr]


def test_they_roll_back_with_it(spark: SparkSession, site: Site) -> None:
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        foreach_partition(spark.range(20), writer(*FILES))
        raise ZeroDivisionError
    assert site.landed() == [[]] * 3
    assert site.prepared() == []


def test_a_partition_that_fails_leaves_nothing_of_any(spark: SparkSession, site: Site) -> None:
    def fail(partition: int) -> None:
        if partition == 1:
            raise OSError("the second")

    with pytest.raises(Exception, match="the second"), txpool.transaction():
        foreach_partition(spark.range(20), writer(*FILES, then=fail))
    assert site.landed() == [[]] * 3
    assert site.prepared() == []


# The first attempt of the first partition is prepared in both databases when its executor dies.
_SCRIPT = """
    import json, logging, os, sys
    from pathlib import Path

    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    import txpool
    from tests.spark.losing_tasks import first_time, kill_executor
    from txpool.spark import foreach_partition
    from txpool.tm import ambient

    logging.basicConfig(level=logging.WARNING)
    folder, *files = sys.argv[1:]
    os.chdir(folder)


    def write(rows):
        cursors = [txpool.connect(file).cursor() for file in files]
        for row in rows:
            for cursor in cursors:
                cursor.execute("insert into landed values (%s, %s)", [row, TaskContext.get().attemptNumber()])
        if first_time(Path(folder, "dies_prepared")):
            ambient.current().after_completion(lambda status: kill_executor())


    spark = SparkSession.builder.getOrCreate()
    txpool.configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    with txpool.transaction():
        report = foreach_partition(spark.sparkContext.parallelize(range(4), 2), write)
    print(json.dumps([report.partitions, report.attempts > 2, report.branches]))
    spark.stop()
"""


@pytest.mark.costly
def test_an_attempt_that_died_prepared_is_rolled_back_and_written_again(
    local_cluster: Callable[..., str], site: Site, tmp_path: Path
) -> None:
    """A retry cannot know whether it is all of it: so it is struck, though all of it is there."""
    files = ("pg.properties", "maria.properties")
    output = local_cluster(_SCRIPT, str(tmp_path), *files)
    assert json.loads(output.splitlines()[-1]) == [2, True, 4]
    assert (tmp_path / "dies_prepared").exists()
    assert site.prepared() == []
    assert site.landed()[:2] == [[0, 1, 2, 3]] * 2
    attempts = site.servers["maria"].execute("select id div 2, min(who) from landed group by 1", database="one")
    assert sorted(attempt for _, attempt in attempts) == [0, 1]
