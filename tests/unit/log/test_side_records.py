"""What every store promises of expired incarnations and of side records."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.log.stores import Opener, branches_of, gtrid_of
from txpool.config.secrets import Secret
from txpool.errors import LogError
from txpool.log import IncarnationState, Refused, SideRecord, SqliteLog, SqlLog, adopt_log, open_log
from txpool.log.base import DecisionLog, Heuristic
from txpool.resources.base import PrepareLocation
from txpool.xid import make_gtrid


@pytest.fixture
def gone(opener: Opener, log: DecisionLog) -> str:
    """The name of an incarnation that has expired, while its process goes on."""
    name = opener().incarnation
    log.fence(name)
    log.expire([name])
    return name


def test_an_expired_incarnation_leaves_the_registry_and_nothing_else_changes(
    opener: Opener, log: DecisionLog, gone: str
) -> None:
    assert gone not in log.incarnations()
    for each in (log, opener()):
        assert each.is_fenced(gone)
        assert each.expired() == each.expired([gone, "unknown00000"]) == {gone}
        with pytest.raises(Refused):
            each.record(make_gtrid(log.node, gone, 1), [])
        with pytest.raises(Refused):
            each.point(make_gtrid(log.node, gone, 1), "ledger")
    assert log.decisions() == {}
    assert log.expired([]) == log.expired(["unknown00000"]) == set()


def test_a_fence_brings_an_expired_incarnation_back(opener: Opener, log: DecisionLog, gone: str) -> None:
    opener().fence(gone)
    assert (log.incarnations()[gone], log.expired()) == (IncarnationState.FENCED, set())
    log.fence(gone)
    assert log.is_fenced(gone)
    log.expire([gone])
    assert log.expired() == {gone}


def test_recoverers_that_bring_it_back_at_once_all_succeed(opener: Opener, log: DecisionLog, gone: str) -> None:
    logs = [opener() for _ in range(4)]
    start, errors = threading.Barrier(len(logs)), list[Exception]()

    def fence(each: DecisionLog) -> None:
        start.wait()
        try:
            each.fence(gone)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=fence, args=[each]) for each in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert log.incarnations()[gone] is IncarnationState.FENCED


def test_only_what_is_fenced_expires(opener: Opener, log: DecisionLog) -> None:
    alive = opener()
    name = alive.incarnation
    log.expire([name, "unknown00000"])
    assert log.incarnations() == {name: IncarnationState.ALIVE}
    assert log.expired() == set()
    assert not log.is_fenced(name)
    gtrid = gtrid_of(alive)
    alive.record(gtrid, branches_of(gtrid))
    with pytest.raises(LogError, match="never registered"):
        log.fence("unknown00000")


def test_a_memo_is_kept_in_the_place_of_its_name_and_told_oldest_first(opener: Opener, log: DecisionLog) -> None:
    kept = [SideRecord("audit", "b", "first", 1.0), SideRecord("audit", "a", "second", 2.0)]
    for record in (SideRecord("audit", "a", "draft", 0.0), *kept, SideRecord("other", "a", "", 0.0)):
        log.put_record(record)
    assert opener().side_records("audit") == kept
    assert log.side_records("nothing") == []
    opener().delete_records("audit", ["a", "never"])
    assert (log.side_records("audit"), len(log.side_records("other"))) == (kept[:1], 1)


def test_a_memo_that_was_written_again_is_not_deleted_as_the_former_one(opener: Opener, log: DecisionLog) -> None:
    for name in ("a", "b"):
        log.put_record(SideRecord("audit", name, "text", time.time()))
    read = log.side_records("audit")
    opener().put_record(SideRecord("audit", "a", "text", time.time()))
    log.delete_unchanged(read)
    (kept,) = log.side_records("audit")
    assert kept.name == "a"
    assert kept not in read
    log.delete_unchanged([kept, SideRecord("audit", "never", "", 1.0)])
    assert log.side_records("audit") == []


def test_what_an_earlier_incarnation_noted_a_later_one_notes_again(opener: Opener, log: DecisionLog) -> None:
    """A location may be noted while another thread registers the process anew: a note from before may be retired."""
    location = PrepareLocation("orders", "7412/5", "10", "")
    first, put = log.incarnation, log.put_record

    def put_while_another_thread_registers(record: SideRecord) -> None:
        put(record)
        opener().fence(first)
        with suppress(Refused):
            log.record(make_gtrid("etl-1", first, 1), [])
        assert log.incarnation != first

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log, "put_record", put_while_another_thread_registers)
        log.note_location(location)
    log.retire_locations(log.locations())
    log.note_location(location)
    assert [note.location for note in log.locations()] == [location]


def test_a_login_is_kept_beside_the_note_and_goes_with_it(opener: Opener, log: DecisionLog) -> None:
    """The former version reads a note of its own form, and no login."""
    login = "postgresql://app:${env:ORDERS_PASSWORD}@db1:5432/orders"
    coded = PrepareLocation("orders", "7412/5", "10", "", login)
    filed = PrepareLocation("stock", "7412/6", "10", "/etc/stock.properties")
    log.note_location(coded)
    log.note_location(filed)
    notes = {note.location.datasource: note for note in opener().locations()}
    assert [note.location for note in notes.values()] == [coded, filed]
    assert all("login" not in json.loads(record.text) for record in log.side_records("datasource"))
    log.note_location(coded._replace(login=login.replace("ORDERS", "OTHER")))
    log.retire_locations([notes["orders"]])
    assert len(log.side_records("login")) == 1, "it was written again since"
    log.retire_locations(log.locations())
    assert (log.locations(), log.side_records("login")) == ([], [])


@pytest.mark.parametrize("text", ["", "[]", '{"format": "2", "login": "x"}', '{"format": "1"}'])
def test_a_login_that_cannot_be_read_is_missing_and_the_note_is_there(log: DecisionLog, text: str) -> None:
    location = PrepareLocation("orders", "7412/5", "10", "", "postgresql://app@db1:5432/orders")
    log.note_location(location)
    (record,) = log.side_records("login")
    log.put_record(replace(record, text=text))
    assert [note.location for note in log.locations()] == [location._replace(login="")]


def test_one_branchs_heuristic_outcome_is_dismissed_alone(log: DecisionLog) -> None:
    found = [Heuristic("g", f"{number}:a:L", "a", "commit", "rolled back", 1.0) for number in (1, 2)]
    for each in (*found, Heuristic("h", "1:a:L", "a", "commit", "rolled back", 1.0)):
        log.record_heuristic(each)
    log.dismiss_heuristics("g", "1:a:L")
    assert [(each.gtrid, each.bqual) for each in log.heuristics()] == [("g", "2:a:L"), ("h", "1:a:L")]


# -- logs that were made before there were side records, and logs that were copied ----------------------------------


def test_a_folder_that_was_made_without_the_tables_gets_them_when_it_is_opened(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    SqliteLog(folder, node="etl-1", create=True).close()
    with closing(sqlite3.connect(folder / "log.db")) as database:
        database.executescript("DROP TABLE memos; DROP TABLE expired")
    with closing(SqliteLog(folder, node="etl-1")) as log:
        log.put_record(SideRecord("audit", "a", "text", 1.0))
        assert log.expired() == set()
        assert len(log.side_records("audit")) == 1


def test_a_server_that_was_made_without_the_tables_says_what_adds_them(databases: Any) -> None:
    url, password = databases.url("one"), Secret(databases.server.password)
    SqlLog(url, node="etl-1", create=True, password=password).close()
    databases.execute("one", "DROP TABLE txpool_memos, txpool_expired")
    with pytest.raises(LogError, match=r"earlier txpool: `txpool-recovery init` adds"):
        SqlLog(url, node="etl-1", password=password)
    with closing(SqlLog(url, node="etl-1", create=True, password=password)) as log:
        assert log.side_records("audit") == []


@pytest.mark.parametrize("kind", ["sqlite", "sql"])
def test_17_adopting_a_log_forgets_its_expired_incarnations_too(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url, password = f"sqlite:///{tmp_path / 'log'}", None
    if kind == "sql":
        databases = request.getfixturevalue("databases")
        url, password = databases.url("one"), Secret(databases.server.password)
    with closing(open_log(url, node="etl-1", create=True, password=password)) as log:
        gone = log.incarnation
        log.note_timeout(gtrid_of(log), 2.0)
        log.fence(gone)
        log.expire([gone])
    adopt_log(url, node="etl-1", password=password)
    with closing(open_log(url, node="etl-1", password=password)) as log:
        assert (log.incarnations(), log.expired(), log.is_fenced(gone), log.timeouts()) == ({}, set(), False, {})
