"""Spark's event log and UI are no secrets: the key with which tasks and the driver sign is not in them.

Whoever reads either of them could else answer a task in place of a driver that has ended.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from txpool.jobs.driver_query import _VARIABLE

if TYPE_CHECKING:
    from tests.support.spark import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_SCRIPT = """
    import sys
    import urllib.request
    from pathlib import Path

    import txpool
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import udf
    from txpool.jobs import driver_query

    folder = sys.argv[1]
    spark = SparkSession.builder.getOrCreate()
    txpool.configure(node_name="driver", log_url=f"sqlite:///{folder}/txlog", log_create=True)
    source = txpool.DataSource("here", driver="sqlite3", mode="local", url=f"sqlite:///{folder}/here.db")

    def tries(number):
        import os
        import txpool

        try:
            txpool.begin()
        except txpool.ProgrammingError as error:
            return str(error), os.environ["TXPOOL_DRIVER_KEY"]
        return "begun", os.environ["TXPOOL_DRIVER_KEY"]

    with txpool.transaction():
        source.connect().execute("create table t (n integer)")
        found = spark.sparkContext.parallelize([1, 2], 2).map(tries).collect()
        found.append(spark.range(1).select(udf(lambda number: [*tries(number)], "array<string>")("id")).first()[0])
    for said, key in found:
        assert "the job of this Spark task was started within" in said, said
        assert key == driver_query._KEY
    shown = ""
    pages = ["jobs/", "stages/", "environment/", "executors/", "jobs/job/?id=0", "stages/stage/?id=0&attempt=0", "SQL/"]
    application = f"api/v1/applications/{spark.sparkContext.applicationId}/"
    pages += [application + page for page in ("jobs", "stages", "environment", "executors", "sql", "stages/0")]
    for page in pages:
        with urllib.request.urlopen(f"{spark.sparkContext.uiWebUrl}/{page}") as answer:
            shown += answer.read().decode()
    spark.stop()
    events = "".join(file.read_text() for file in Path(folder, "events").rglob("*") if file.is_file())
    assert "txpool.transaction" in events, "the property is not there at all"
    assert len(shown) > 10000
    print("in the event log:", driver_query._KEY in events, "in the UI:", driver_query._KEY in shown)
"""


def test_the_key_is_in_neither(local_cluster: LocalCluster, tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
    }
    assert _VARIABLE in _SCRIPT
    said = local_cluster(_SCRIPT, str(tmp_path), conf=conf, master="local[2]")
    assert said.strip().endswith("in the event log: False in the UI: False")
