"""PREPARE, COMMIT and the user's statements run under the user's own search path, which txpool never changes."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest

import txpool
from tests.support.bouncer import PROGRAM, bouncer
from txpool.resources.marked.xids import Xids
from txpool.tm.manager import configure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import Databases, Require

_MADE = """
    create schema mine;
    create table mine.t (n integer);
    create table mine.seen (at text, path text, waits text);
    create function mine.sees() returns trigger language plpgsql as $$ begin
        insert into seen values ('the end', current_setting('search_path'), current_setting('lock_timeout'));
        return null; end $$;
    create constraint trigger sees after insert on mine.t deferrable initially deferred
        for each row execute function mine.sees()
"""
_PATH = "mine, public"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[None]:
    manager = configure(node_name="tests", log_url=f"sqlite:///{tmp_path}/log", log_create=True)
    yield
    manager.close()


@pytest.mark.usefixtures("manager")
@pytest.mark.parametrize("mode", ["xa", "cmr", "evidence"])
@pytest.mark.parametrize("pooler", ["", "session", "transaction"])
def test_a_deferred_trigger_sees_the_users_path(databases: Databases, require: Require, mode: str, pooler: str) -> None:
    """Also where an interrupt comes between, and behind PgBouncer."""
    databases.execute("one", _MADE)
    databases.execute("two", "create table t (n integer)")
    options: dict[str, Any] = {"mode": "cmr"} if mode == "cmr" else {"xa_evidence": "row"} if mode == "evidence" else {}
    with ExitStack() as stack:
        if pooler:
            require(PROGRAM, "PgBouncer: apt-get install pgbouncer")
            port = stack.enter_context(bouncer(databases.server, pooler))
            options["url"] = f"postgresql://{databases.server.user}@127.0.0.1:{port}/one"
            options["password"] = None
            if pooler == "transaction":
                options |= {"pool_enabled": False, "driver_prepare_threshold": "none"}
        one = stack.enter_context(databases.datasource("one", **options))
        two = stack.enter_context(databases.datasource("two"))
        if mode == "cmr":
            Xids("one", one.driver_adapter).create()
        if mode == "evidence":
            one.driver_adapter.rows.create()
        txpool.register(one)
        with txpool.transaction(transaction_id="nightly", record_in="one"):
            connection = one.connect()
            cursor = connection.cursor()
            cursor.execute(f"set local search_path = {_PATH}")
            cursor.execute("set local lock_timeout = '7s'")
            cursor.execute("savepoint mine")
            cursor.execute("insert into t values (1)")
            two.connect().cursor().execute("insert into t values (1)")
            with pytest.raises(KeyboardInterrupt):
                txpool.transactional("requires_new")(interrupted)(one)
            cursor.execute("rollback to savepoint mine")
            cursor.execute("insert into t values (2)")
            shown = cursor.execute("select current_setting('search_path'), current_setting('lock_timeout')").fetchone()
            assert shown == (_PATH, "7s")
        assert databases.rows("one", "select n from mine.t") == [(2,)]
        assert databases.rows("one", "select * from mine.seen") == [("the end", _PATH, "7s")]
        # The next borrower has what the server gives.
        with closing(one.connect()) as connection:
            assert connection.cursor().execute("show search_path").fetchone() == ('"$user", public',)


def interrupted(source: txpool.DataSource) -> None:
    source.connect().cursor().execute("insert into mine.seen values ('never', '', '')")
    raise KeyboardInterrupt
