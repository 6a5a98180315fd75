"""The Spark that the benchmarks of reading and writing measure, and the datasource beside it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.jdbc import JAR
from tests.support.mysql import MySQLServer
from txpool.datasource import DataSource
from txpool.demo import java
from txpool.demo.server import EmbeddedPostgres
from txpool.tm.manager import configure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": "-Duser.timezone=UTC",
}


@contextmanager
def local_session(
    server: EmbeddedPostgres | MySQLServer, *, driver: str = "psycopg", jar: str = JAR, more: Mapping[str, str] = {}
) -> Iterator[tuple[SparkSession, DataSource]]:
    """A session with two threads, the "txpool" format, a JDBC driver and more settings; the server's database one."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= java.spark_environment(Path(folder))
        conf = " ".join(f"--conf {name}={value}" for name, value in {**_CONF, **more}.items())
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--master local[2] --driver-memory 2g --jars {jar} {conf} pyspark-shell"
        os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
        from pyspark.sql import SparkSession

        from txpool.spark import register

        spark = SparkSession.builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        register(spark)
        (Path(folder) / "secret").write_text(server.password)
        (Path(folder) / "secret").chmod(0o600)
        file = Path(folder) / "one.properties"
        file.write_text(f"driver = {driver}\nurl = {server.url('one')}\npassword = ${{file:secret}}\n")
        configure(node_name="bench", log_url=f"sqlite:///{folder}/txlog", log_create=True)
        with DataSource.from_properties(file) as source:
            yield spark, source
        spark.stop()
