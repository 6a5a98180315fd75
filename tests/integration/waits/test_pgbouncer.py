"""Behind PgBouncer a statement that waits is found by the server's own number of its session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

import txpool
from tests.integration.waits.waiting import DEFER, configure, left_by_a_dead_process, reports
from tests.support.bouncer import PROGRAM, bouncer
from tests.support.recovery_site import BOTH, Site
from tests.support.running import running
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.conftest import Require

INSERT = "insert into t values (1)"


def insert() -> None:
    with txpool.transaction():
        txpool.connect("one.properties").execute(INSERT)


def insert_in_one_message() -> None:
    with txpool.transaction():
        txpool.connect("one.properties").execute("insert into t values (%s)", [1])


def insert_later() -> None:
    with txpool.transaction():
        connection = txpool.connect("one.properties")
        connection.execute("select 1")
        connection.execute("select 2").fetchall()
        connection.execute(INSERT)


def insert_in_serializable() -> None:
    with txpool.transaction():
        connection = txpool.connect("one.properties")
        connection.execute("set transaction isolation level serializable")
        connection.execute(INSERT)


@pytest.fixture(params=["session", "transaction"])
def bounced(request: pytest.FixtureRequest, watched: Site, require: Require) -> Iterator[Callable[[], None]]:
    """Lets the datasource of `one` lead through a PgBouncer."""
    require(PROGRAM, "PgBouncer: apt-get install pgbouncer")
    text = (watched.folder / "one.properties").read_text().strip()
    with bouncer(watched.databases.server, request.param) as port:

        def bounce() -> None:
            through = text.replace(f":{watched.databases.server.port}/", f":{port}/")
            watched.write("one", f"{through}\npool.enabled = false\ndriver.prepare_threshold = none")

        yield bounce
        for source in txpool.datasource.opened():
            source.close()


@pytest.mark.parametrize("work", [insert, insert_in_one_message, insert_later])
def test_it_is_named_and_its_branch_ended(
    watched: Site, bounced: Callable[[], None], caplog: pytest.LogCaptureFixture, work: Callable[[], None]
) -> None:
    gtrid = left_by_a_dead_process(watched, *BOTH)
    bounced()
    with txpool.connect("one.properties"), running(work) as done:  # another session of the pooler's
        until(lambda: reports(caplog), what="nothing is said of it")
        done.result(60)
    (report,) = reports(caplog)
    assert f"{gtrid} (process " in report
    assert watched.counts()["one"] == 1


def test_a_commit_that_waits_is_named_too(
    watched: Site, bounced: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    watched.databases.execute("one", DEFER)
    gtrid = left_by_a_dead_process(watched, *BOTH)
    bounced()
    with running(insert_in_one_message) as done:
        until(lambda: reports(caplog), what="nothing is said of it")
        done.result(60)
    assert gtrid in reports(caplog)[0]


def test_a_transaction_whose_session_is_not_known_does_not_take_the_last_one_s(
    watched: Site, bounced: Callable[[], None], caplog: pytest.LogCaptureFixture, looks: list[int]
) -> None:
    """SET TRANSACTION must come before any query, and so before the question."""
    configure("etl-2")
    left_by_a_dead_process(watched, *BOTH)
    bounced()
    with txpool.transaction():
        connection = txpool.connect("one.properties")
        connection.execute("select 1")
        raw = connection.current_enlistment().raw
        assert raw.behind_pooler
        assert raw.session_number != raw.pgconn.backend_pid
        (backends,) = watched.databases.rows("one", "select array_agg(pid) from pg_stat_activity")
        assert raw.session_number in backends[0]
    with running(insert_in_serializable) as done:
        until(lambda: len(looks) > 1)
        assert reports(caplog) == []
        assert watched.command("scan", conf="recovery").returncode == 0
        done.result(60)
    assert watched.counts()["one"] == 1
