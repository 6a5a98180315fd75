"""A thread still waits for a connection when its transaction ends: the connection is given back all the same."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from contextvars import copy_context
from pathlib import Path

import pytest

from txpool.datasource import DataSource
from txpool.errors import ProgrammingError
from txpool.tm.completion.status import Status
from txpool.tm.demarcation.block import transaction
from txpool.tm.manager import configure


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[DataSource]:
    with sqlite3.connect(tmp_path / "one.db") as raw:
        raw.execute("create table t (id integer primary key, v text)")
    raw.close()
    manager = configure(node_name="tests", log_url="memory:")
    with DataSource(
        name="lite", driver="sqlite3", mode="local", url=f"sqlite:///{tmp_path}/one.db", pool_max_size=1
    ) as datasource:
        yield datasource
    manager.close()


def test_a_transaction_ends_while_a_thread_waits_for_a_connection(lite: DataSource) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with closing(lite.connect(timeout=10)) as connection:
                connection.execute("insert into t values (1, 'v')")
        except BaseException as error:
            errors.append(error)

    with closing(lite.connect()):
        with transaction() as current:
            thread = threading.Thread(target=copy_context().run, args=(work,))
            thread.start()
            while not lite.pool.statistics().waiting:
                time.sleep(0.01)
        assert current.status is Status.COMMITTED
    thread.join()
    assert [type(error) for error in errors] == [ProgrammingError]
    with closing(lite.connect(timeout=1)) as connection:
        assert connection.execute("select count(*) from t").fetchone() == (0,)
