"""What a datasource's pool is in a Spark task: credentials come by name, and nobody listens for `txpool pool`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from txpool.datasource import DataSource
from txpool.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Databases


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a module with a function that gives the password of a file beside it."""
    source = "from pathlib import Path\ndef token():\n    return Path(__file__).with_name('token').read_text()\n"
    (tmp_path / "vault_of_tasks.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("vault_of_tasks", None)


def test_credentials_that_are_named_are_called_in_the_task(
    spark: SparkSession, databases: Databases, module: Path
) -> None:
    (module / "token").write_text(databases.server.password)
    with DataSource(
        name="one", driver="psycopg", url=databases.url("one"), credentials="vault_of_tasks:token"
    ) as datasource:

        def work(_: Any) -> Any:
            sys.path.insert(0, str(module))  # as it would be installed there
            with closing(datasource.connect()) as connection:
                yield connection.execute("select session_user").fetchone()[0]

        found = spark.sparkContext.parallelize([1], 1).mapPartitions(work).collect()
    assert found == [databases.server.user]


def test_a_function_given_in_code_does_not_travel(spark: SparkSession, databases: Databases) -> None:
    with DataSource(
        name="one", driver="psycopg", url=databases.url("one"), credentials=lambda: "no secret"
    ) as datasource:
        with pytest.raises(Exception, match="a function given in code, which cannot travel") as caught:
            spark.sparkContext.parallelize([1], 1).map(lambda _: datasource.name).collect()
        assert isinstance(caught.value, ConfigurationError) or "ConfigurationError" in str(caught.value)


def test_a_task_does_not_listen(spark: SparkSession, tmp_path: Path) -> None:
    conf = tmp_path / "txpool.properties"
    conf.write_text("control.folder = control\n")
    url = f"sqlite:///{tmp_path}/one.db"

    def work(_: Any) -> Any:
        os.environ["TXPOOL_CONF"] = str(conf)
        with DataSource(name="lite", driver="sqlite3", mode="local", url=url) as datasource:
            datasource.connect().close()
            yield datasource.statistics().created
        del os.environ["TXPOOL_CONF"]

    assert spark.sparkContext.parallelize([1], 1).mapPartitions(work).collect() == [1]
    assert not (tmp_path / "control").exists()
