"""Rows out of Spark into MariaDB or MySQL: write_table(), and Spark's own JDBC writer.

python tests/benchmarks/bench_spark_mysql.py [ROUNDS] [--mysql] [--key] [--over] [--rows N] [--way NAME]…

Spark's writer needs a JDBC jar: Debian's libmariadb-java, or the path in MARIADB_JAR.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.bench_spark_write import PARTITIONS, ROWS, frame
from tests.benchmarks.report import compare
from tests.benchmarks.session import local_session
from tests.spark.jdbc import MARIADB_JAR, mysql_jdbc
from tests.support.mysql import MySQLServer, mariadb_program, mysql_program
from txpool.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CREATE = (
    "create table landed (id bigint, n int, x double, name varchar(100) character set utf8mb4, seen timestamp(6) null) "
    "engine = innodb"
)
_BATCHED = "?rewriteBatchedStatements=true"
#: As large as a million rows need, so that no page has to leave the buffer pool before the end.
_SETTINGS = ("--innodb-buffer-pool-size=512M", "--innodb-log-file-size=512M")


class Bench:
    """A session, a server, and what is measured on them."""

    def __init__(self, spark: SparkSession, server: MySQLServer, source: DataSource) -> None:
        self._spark = spark
        self._server = server
        self._source = source
        self._writes = 0
        self.create = _CREATE
        self._before: tuple[str, ...] = ()
        #: How a DataFrame may get into the table `landed`; the first is what the others are compared with.
        self.ways: dict[str, Callable[[DataFrame], object]] = {
            "write_table": self._ours,
            "write_table, staged": partial(self._ours, strategy="staged"),
            'format("txpool")': self._format,
            "write_table, atomicity='partition'": self._partitions,
            "JDBC": self._jdbc,
            "JDBC, rewriteBatchedStatements": partial(self._jdbc, parameters=_BATCHED),
        }
        #: The same into a table that has the same rows already. Spark's writer truncates it, which is no transaction.
        self.ways_over: dict[str, Callable[[DataFrame], object]] = {
            "write_table, overwrite": partial(self._ours, mode="overwrite"),
            "write_table, upsert": partial(self._ours, mode="upsert", keys=["id"]),
            "JDBC, rewriteBatchedStatements, overwrite": partial(self._jdbc, parameters=_BATCHED, mode="overwrite"),
        }

    def _ours(self, df: DataFrame, **options: Any) -> object:
        from txpool.spark import write_table

        return write_table(df, self._source, "landed", **options)

    def _partitions(self, df: DataFrame) -> object:
        self._writes += 1
        return self._ours(df, atomicity="partition", transaction_id=f"bench-{self._writes}")

    def _format(self, df: DataFrame) -> None:
        options = {"datasource": str(self._source.settings.properties.path), "dbtable": "landed"}
        df.write.format("txpool").options(**options).mode("append").save()

    def _jdbc(self, df: DataFrame, parameters: str = "", mode: str = "append") -> None:
        options = mysql_jdbc(self._server, parameters) | {"dbtable": "landed", "truncate": "true"}
        df.write.format("jdbc").options(**options).mode(mode).save()

    def keep(self) -> None:
        """Have the rows of the table there before each write from now on."""
        self._server.execute("rename table landed to kept", database="one")
        self._before = ("insert into landed select * from kept",)

    def timed(self, write: Callable[[], object], rows: int) -> float:
        """Seconds for one write into the table, which is made anew, and whose rows are counted."""
        self._server.execute("drop table if exists landed", self.create, *self._before, database="one")
        began = time.perf_counter()
        write()
        seconds = time.perf_counter() - began
        found = self._server.execute("select count(*) from landed", database="one")
        assert found == [(rows,)], found
        return seconds

    def contest(self, rounds: int, rows: int, *, over: bool) -> None:
        df = frame(self._spark, rows, PARTITIONS).cache()
        df.count()
        self.timed(partial(self._ours, df), rows)
        if over:
            self.keep()
        writes = {name: partial(way, df) for name, way in (self.ways_over if over else self.ways).items()}
        compare(
            f"{rows:,} rows of five columns{' over as many' if over else ''}, {PARTITIONS} cached partitions, "
            f"local[2], {self._server.product()}",
            {name: partial(self.timed, write, rows) for name, write in writes.items()},
            rounds=rounds,
            unit="s",
        )
        df.unpersist()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rounds", nargs="?", type=int, default=3)
    parser.add_argument("--mysql", action="store_true", help="MySQL instead of MariaDB")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--key", action="store_true", help="the table has a primary key")
    parser.add_argument("--over", action="store_true", help="into a table that has the rows, by overwrite and upsert")
    parser.add_argument("--way", action="append", help="what to measure, by its name; may be repeated")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = mysql_program(Path(folder)) if wanted.mysql else mariadb_program()
        if program is None:
            sys.exit("it needs MariaDB (apt-get install mariadb-server), or Maven for MySQL")
        Path(folder).chmod(0o755)
        with (
            MySQLServer(program, settings=_SETTINGS) as server,
            local_session(server, driver="pymysql", jar=MARIADB_JAR) as (spark, source),
        ):
            bench = Bench(spark, server, source)
            if wanted.key or wanted.over:
                bench.create = _CREATE.replace("id bigint,", "id bigint primary key,")
            if wanted.way:
                bench.ways = {name: bench.ways[name] for name in wanted.way}
            bench.contest(wanted.rounds, wanted.rows, over=wanted.over)


if __name__ == "__main__":
    main()
