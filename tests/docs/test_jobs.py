"""The blocks of docs/how-to/jobs.md with a worker behind them, and what the page says of ends that are no commit."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
import pytest

import txpool
from tests.docs.blocks import read
from tests.docs.running import PASSWORD, Machine
from tests.support.repository import ROOT
from tests.support.waiting import until
from txpool import TransactionInDoubt, failpoints

if TYPE_CHECKING:
    from tests.conftest import Require

PAGE = read(ROOT / "docs/how-to/jobs.md")


@pytest.fixture
def page(machine: Machine, require: Require, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The page's site, before its own blocks."""
    for package in ("celery", "procrastinate"):
        require(importlib.util.find_spec(package), f"{package}: pip install -e '.[test]'")
    for module in ("tasks", "later", "jobs"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    for other in PAGE.stands_on:
        machine.run(read(other))
    return machine


def blocks(page: Machine, heading: str) -> None:
    """Run the blocks below a heading."""
    text = PAGE.path.read_text()
    first = text[: text.index(f"## {heading}\n")].count("\n")
    last = text.find("\n## ", text.index(f"## {heading}\n"))
    for block in PAGE.blocks:
        if first < block.line <= (text.count("\n") if last < 0 else text[:last].count("\n") + 1):
            page.one(block)


def rows(page: Machine, database: str, query: str) -> list[Any]:
    with closing(psycopg.connect(url(page, database))) as connection:
        return connection.execute(query).fetchall()  # type: ignore[call-overload,no-any-return]


def url(page: Machine, database: str) -> str:
    return page.here(f"postgresql://app:{quote(PASSWORD)}@localhost/{database}")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Celery's worker changes the level of the root logger, and its handlers, for the whole process."""
    root = logging.getLogger()
    level, handlers, txpools = root.level, root.handlers[:], logging.getLogger("txpool").level
    yield
    root.setLevel(level)
    root.handlers[:] = [each for each in root.handlers if each in handlers]
    logging.getLogger("txpool").setLevel(txpools)


@pytest.mark.costly
def test_a_celery_task_through_the_outbox_is_done_once(page: Machine) -> None:
    worker, signals = map(importlib.import_module, ("celery.contrib.testing.worker", "celery.signals"))
    blocks(page, "Celery: exactly once")
    tasks = importlib.import_module("tasks")
    (queued,) = (page.folder / "queue").iterdir()
    twice = queued.with_name(f"0_{queued.name}")  # the broker delivers it twice
    twice.write_bytes(queued.read_bytes())
    done: list[tuple[str, str]] = []
    signals.task_postrun.connect(lambda task_id, state, **_: done.append((task_id, state)), weak=False)
    with worker.start_worker(tasks.app, pool="solo", perform_ping_check=False, shutdown_timeout=60):
        until(lambda: len(done) == 2)
    assert done[0] == done[1] == (done[0][0], "SUCCESS")
    assert rows(page, "billing", "select id from items") == [(1,)]


class Task:
    name = "bill"

    def __init__(self) -> None:
        self.queued: list[Any] = []

    def delay(self, *args: Any) -> None:
        self.queued.append(args)


def test_a_task_is_queued_after_a_commit_and_in_no_other_case(page: Machine, caplog: pytest.LogCaptureFixture) -> None:
    blocks(page, "Celery: after the commit")
    later, task = importlib.import_module("later"), Task()

    def work(number: int) -> None:
        for name in ("orders", "billing"):
            table = "orders" if name == "orders" else "items"
            with txpool.connect(f"conf/{name}.properties") as connection:
                connection.execute(f"insert into {table} values ({number}, 1)")
        later.queue_later(task, number)

    with txpool.transaction():
        work(1)
        assert task.queued == []
    assert task.queued == [(1,)]
    with pytest.raises(LookupError), txpool.transaction():
        work(2)
        raise LookupError

    failpoints.arm("log.record")
    with (
        caplog.at_level(logging.ERROR),
        failpoints.arming("log.abort"),
        pytest.raises(TransactionInDoubt),
        txpool.transaction(),
    ):
        work(3)
    assert task.queued == [(1,)]
    assert "bill(3,) is not queued: it is in doubt whether its data stay" in caplog.text


def test_a_job_of_procrastinate_commits_with_data_in_two_databases(page: Machine) -> None:
    schema = importlib.import_module("procrastinate.schema").SchemaManager.get_schema()
    with psycopg.connect(url(page, "orders")) as connection:
        connection.execute(schema)
    blocks(page, "procrastinate")
    store = page.namespace["store"]
    store(1, 10)
    with pytest.raises(Exception, match=r"orders_pkey"):
        store(1, 10)
    jobs = "select task_name, args from procrastinate_jobs"
    assert rows(page, "orders", jobs) == [("bill", {"order": 1, "amount": 10})]
    assert rows(page, "billing", "select balance from account") == [(10,)]
    # With mode = xa nothing of it stays.
    file = page.folder / "conf/orders.properties"
    file.write_text(file.read_text().replace("mode = cmr", "mode = xa"))
    txpool.DataSource.from_properties("conf/orders.properties").close()
    with pytest.raises(txpool.TransactionRolledBack, match="NOTIFY"):
        store(2, 10)
    assert len(rows(page, "orders", jobs)) == 1
    assert rows(page, "billing", "select balance from account") == [(10,)]
