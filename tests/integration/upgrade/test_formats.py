"""Every stored format carries a number: whoever meets a later one says so, and touches nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from recovery import RecoveryManager
from tests.integration.upgrade.former import LEFT_ALONE, Former, Make
from txpool.config.secrets import Secret
from txpool.config.settings import RecoverySettings
from txpool.datasource import DataSource
from txpool.errors import LogError, OperationalError
from txpool.log import adopt_log, open_log
from txpool.log.locations import INCARNATION
from txpool.resources.marked.xids import Xids
from txpool.setup.stores import initialise
from txpool.xid import new_incarnation

STORES = pytest.mark.parametrize("store", ["sqlite", "server"])
_LATER = r"has format 2; this txpool reads format 1. A later txpool has written it"


def manage(site: Former, act: Callable[[RecoveryManager], Any]) -> Any:
    with closing(RecoveryManager(site.conf)) as manager:
        return act(manager)


@STORES
def test_a_log_of_a_later_format(former: Make, store: str) -> None:
    site = former(store)
    site.in_log("update {meta} set value = '2' where name = 'format'")
    before = site.stored()
    secret = {"password": Secret(site.databases.server.password)} if store == "server" else {}
    attempts: list[Callable[[], object]] = [
        lambda: manage(site, RecoveryManager.scan),
        lambda: manage(site, RecoveryManager.in_doubt),
        lambda: initialise(RecoverySettings.load(site.conf)),
        lambda: initialise(RecoverySettings.load(site.conf), adopt=True),
        lambda: adopt_log(site.log_url, node="etl-1", **secret),
        lambda: open_log(site.log_url, node="etl-1", **secret),
    ]
    for attempt in attempts:
        with pytest.raises(LogError, match=_LATER):
            attempt()
    assert site.stored() == before


@STORES
def test_what_a_later_version_keeps_beside_the_decisions(former: Make, store: str) -> None:
    site = former(store)
    note = f"etl-1 {new_incarnation()} 10"
    ours = "txp1:etl-1:unknown00000:1"
    kinds: list[tuple[str, str, Callable[[RecoveryManager], object]]] = [
        ("datasource", note, RecoveryManager.scan),
        ("suspended", "etl-1", RecoveryManager.scan),
        ("audit", "1795317061.799491 37ab6c29", RecoveryManager.audit_entries),
        ("expired", ours, RecoveryManager.expired),
        ("ends", ours, RecoveryManager.in_doubt),
        ("branch error", f"{ours}:0:one:L", RecoveryManager.in_doubt),
    ]
    before = site.stored()
    for kind, name, act in kinds:
        site.in_log("delete from {memos} where kind = %s and name = %s", kind, name)
        site.keep_memo(kind, name, json.dumps({"format": "2", "what": "nobody knows"}))
        with pytest.raises(LogError, match=f"what the log keeps as {kind} of {name} {_LATER}"):
            manage(site, act)
        site.in_log("delete from {memos} where kind = %s and name = %s", kind, name)
    site.keep_memo(INCARNATION, "abcdefghijkl", "2")
    with pytest.raises(LogError, match=f"incarnation abcdefghijkl {_LATER}"):
        manage(site, RecoveryManager.scan)
    after = site.stored()
    assert {table for table in before if after[table] != before[table]} <= {"memos", "incarnations"}


@pytest.mark.costly
@STORES
def test_a_note_of_another_node_may_be_of_any_format(former: Make, store: str) -> None:
    site = former(store)
    site.keep_memo("datasource", "etl-9 identity 10", '{"format": "2"}')
    manage(site, RecoveryManager.scan)
    assert site.databases.prepared() == LEFT_ALONE


@pytest.mark.costly
@STORES
def test_the_branches_of_a_later_decision(former: Make, store: str) -> None:
    site = former(store)
    before = site.databases.prepared()
    site.in_log("update {decisions} set branches = %s where branches is not null", '{"format": "2"}')
    with pytest.raises(LogError, match=r"has format 2, which is a later txpool's: use that one.*Nothing was done"):
        manage(site, RecoveryManager.scan)
    assert site.databases.prepared() == before


@STORES
def test_a_transaction_of_a_later_format_in_the_log(former: Make, store: str) -> None:
    site = former(store)
    before = site.databases.prepared()
    site.in_log("insert into {decisions} (gtrid, branches, made) values (%s, %s, 0)", "txp2:etl-1:x:1", "[]")
    with pytest.raises(LogError, match=r"'txp2:etl-1:x:1' is not a gtrid of txpool. Nothing was done"):
        manage(site, RecoveryManager.scan)
    assert site.databases.prepared() == before


def test_a_table_of_marks_of_a_later_format(former: Make) -> None:
    site = former("sqlite")
    site.as_app("two", "update xids set transaction_manager_id = 'txp2' where xid = 'txp1:identity'")
    before = site.marks()["book"]
    report = manage(site, RecoveryManager.scan)
    later = "has format txp2; this txpool reads txp1. A later txpool has written it"
    assert later in report.unreachable["book"]
    of_book = [branch.gid for branch in site.branches() if ":M.book:" in branch.gid]
    assert site.databases.prepared() == sorted([*LEFT_ALONE, *of_book])
    with DataSource.from_properties(site.folder / "book.properties") as book:
        table = Xids("book", book.driver_adapter)
        attempts = [table.create, table.read, lambda: table.tombstone("txp1:etl-1:abcdefghijkl:1")]
        with closing(book.driver_adapter.connect()) as raw:
            attempts.append(lambda: table.identity(raw))
            for attempt in attempts:
                with pytest.raises(OperationalError, match=later):
                    attempt()
    assert site.marks()["book"] == before


def test_names_of_a_later_format_are_left_alone(former: Make) -> None:
    site = former("sqlite")
    with site.session("one") as connection:
        connection.execute("begin")
        connection.execute("prepare transaction 'txp2:etl-1:abcdefghijkl:1:0:one:L'")
    site.as_app("two", "insert into xids values ('txp2:etl-1:abcdefghijkl:1', 'etl-1', 'abcdefghijkl', 'abort', '[]')")
    report = manage(site, RecoveryManager.scan)
    assert not report.errors
    assert site.databases.prepared() == sorted([*LEFT_ALONE, "txp2:etl-1:abcdefghijkl:1:0:one:L"])
    assert "txp2:etl-1:abcdefghijkl:1" in site.marks()["book"]
