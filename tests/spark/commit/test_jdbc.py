"""Tasks that write to databases over JDBC, inside the driver's transaction: a JVM in each worker, beside Spark's.

Drivers and workers that are killed: tests/crash/test_spark_jdbc.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txpool
import txpool.datasource
from tests.conftest import Databases
from tests.support.jdbc_places import JdbcPlaces
from tests.support.mysql import MySQLServer
from txpool.spark import foreach_partition
from txpool.tm.manager import configure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.jdbc import Jars

pytestmark = pytest.mark.spark

FILES = ("pg.properties", "pg-jdbc.properties", "maria-jdbc.properties")


class Site:
    """The working directory: a decision log, and a file for each database, with its password by reference."""

    def __init__(self, folder: Path, databases: Databases, mariadb: MySQLServer, jars: Jars) -> None:
        self.databases = databases
        self.mariadb = mariadb
        places = JdbcPlaces(folder, jars, {"postgresql": databases.server, "mariadb": mariadb}.__getitem__)
        for database in ("one", "two"):
            databases.execute(database, "create table landed (id bigint primary key, who int)")
        mariadb.empty()
        mariadb.execute("create table landed (id bigint primary key, who int) engine=innodb", database="one")
        for name, server in (("pg", databases.server), ("maria", mariadb)):
            (folder / f"{name}.secret").write_text(server.password)
            (folder / f"{name}.secret").chmod(0o600)
        on_two = f"jdbc:postgresql://127.0.0.1:{databases.server.port}/two"
        texts = {
            "pg": f"driver = psycopg\nurl = {databases.url('one')}\npassword = ${{file:{folder}/pg.secret}}\n",
            "pg-jdbc": places.lines("postgresql", url=on_two, Password=f"${{file:{folder}/pg.secret}}"),
            "maria-jdbc": places.lines("mariadb", Password=f"${{file:{folder}/maria.secret}}"),
        }
        for name, text in texts.items():
            (folder / f"{name}.properties").write_text(text)
            (folder / f"{name}.properties").chmod(0o600)

    def landed(self) -> list[list[int]]:
        query = "select id from landed order by id"
        found = [self.databases.rows("one", query), self.databases.rows("two", query)]
        found.append(self.mariadb.execute(query, database="one"))
        return [[number for (number,) in rows] for rows in found]

    def prepared(self) -> list[str]:
        return [*self.databases.prepared(), *self.mariadb.names()]


@pytest.fixture
def site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, databases: Databases, mariadb: MySQLServer, jdbc_jars: Jars
) -> Iterator[Site]:
    monkeypatch.chdir(tmp_path)
    manager = configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    yield Site(tmp_path, databases, mariadb, jdbc_jars)
    for datasource in set(txpool.datasource.known().values()):
        datasource.close()
    manager.close()


def write(rows: Iterator[Any]) -> None:
    from pyspark import TaskContext

    from txpool.datasource import connect

    partition = TaskContext.get().partitionId()
    cursors = [connect(file).cursor() for file in FILES]
    for row in rows:
        for cursor, one in zip(cursors, ("%s", "?", "?"), strict=True):
            cursor.execute(f"insert into landed values ({one}, {one})", [row.id, partition])


@pytest.mark.costly
def test_partitions_commit_with_the_driver_and_roll_back_with_it(spark: SparkSession, site: Site) -> None:
    with txpool.transaction():
        report = foreach_partition(spark.range(20).repartition(2), write)
        assert report.branches == 6
        assert len(site.prepared()) == 6
        txpool.connect(FILES[1]).cursor().execute("insert into landed values (-1, -1)")
    assert site.landed() == [[*range(20)], [*range(-1, 20)], [*range(20)]]
    assert site.prepared() == []
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        foreach_partition(spark.range(100, 120).repartition(2), write)
        raise ZeroDivisionError
    assert site.landed() == [[*range(20)], [*range(-1, 20)], [*range(20)]]
    assert site.prepared() == []
