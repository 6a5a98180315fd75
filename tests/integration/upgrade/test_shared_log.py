"""Nodes upgrade one by one: on one log, each version goes on, and understands what the other writes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg import sql

from recovery import RecoveryManager
from recovery.operator.audit import audited
from recovery.operator.suspension import resume, suspend, suspension
from tests.integration.upgrade.former import COMMITTED, LEFT_ALONE, WRITER, Former, Make, texts
from tests.integration.upgrade.statements import FormerInFolder, FormerOnServer
from txpool.config.secrets import Secret
from txpool.log import open_log
from txpool.log.base import DecisionLog, IncarnationState
from txpool.resources.base import BranchRecord, PrepareLocation, Refused, Resolution
from txpool.xid import make_gtrid, make_xid, new_incarnation

FormerProcess = FormerInFolder | FormerOnServer


@pytest.fixture(params=["sqlite", "server"])
def site(request: pytest.FixtureRequest, former: Make) -> Former:
    return former(request.param)


@pytest.fixture
def old(site: Former) -> Iterator[FormerProcess]:
    """A living process of the former version, of another node where the log is shared by several."""
    name = new_incarnation()
    if site.store == "sqlite":
        process: FormerProcess = FormerInFolder(site.folder / "txlog", name)
    else:
        process = FormerOnServer(psycopg.conninfo.make_conninfo(site.databases.dsn("one"), user="app"), "etl-7", name)
    with closing(process):
        yield process


@pytest.fixture
def new(site: Former) -> Iterator[DecisionLog]:
    """The log as this version has it open: nothing had to be done to it."""
    password = {"password": Secret(site.databases.server.password)} if site.store == "server" else {}
    with closing(open_log(site.log_url, node="etl-1", nodes=("*",), **password)) as log:
        yield log


def node_of(site: Former) -> str:
    return "etl-1" if site.store == "sqlite" else "etl-7"


def test_the_former_version_decides_and_this_one_understands(
    site: Former, old: FormerProcess, new: DecisionLog
) -> None:
    one, two, three, four = (make_gtrid(node_of(site), old.name, number) for number in range(1, 5))
    assert new.incarnations()[old.name] is IncarnationState.ALIVE
    assert old.name not in new.incarnations_noting()
    assert old.record(one, '[["0:one:L","one","7/16384",{"xid":"740","timeline":"00000001"}]]')
    evidence = {"xid": "740", "timeline": "00000001"}
    assert new.decisions()[one].branches == (BranchRecord(make_xid(one, 0, "one"), "one", "7/16384", evidence),)
    assert new.abort(one) is Resolution.COMMITTED
    assert old.abort(two)
    assert two in new.aborted()
    assert old.point(three, "ledger:abcdefghijkl")
    assert new.pointers()[three] == "ledger:abcdefghijkl"
    old.finish(four)
    assert four in new.finished()
    old.forget(one)
    old.forget(three)
    assert one not in new.decisions()
    assert three not in new.pointers()
    new.fence(old.name)
    assert not old.record(four, "[]"), "what this version has fenced decides nothing"
    assert not old.point(four, "ledger:abcdefghijkl")


def test_this_version_decides_and_the_former_understands(site: Former, old: FormerProcess, new: DecisionLog) -> None:
    name = new.incarnation
    one, two, three = (make_gtrid("etl-1", name, number) for number in range(1, 4))
    assert old.lives()[name] == "alive"
    new.note_location(PrepareLocation("one", "7/16384", "10", "/etc/one.properties"))
    evidence = {"xid": "740", "timeline": "00000001"}
    new.record(one, [BranchRecord(make_xid(one, 0, "one"), "one", "7/16384", evidence)])
    assert old.decisions()[one] == [("0:one:L", "one", "7/16384", evidence)]
    assert not old.abort(one)
    assert old.abort(two)
    with pytest.raises(Refused):
        new.record(two, [])
    assert old.fence(name)
    with pytest.raises(Refused):
        new.record(three, [])
    later = new.incarnation
    assert later != name
    assert later in new.incarnations_noting()
    old.expire(name)
    assert new.expired([name]) == {name}
    assert new.is_fenced(name)


def test_the_former_version_refuses_what_is_beside_a_last_resource(
    site: Former, old: FormerProcess, new: DecisionLog
) -> None:
    one, two = (make_gtrid("etl-1", new.incarnation, number) for number in (1, 2))
    new.note_last(one, "till")
    assert not old.abort(one), "it takes the note for a decision, and refuses"
    with pytest.raises(ValueError, match="unpack"):
        old.decisions()
    assert new.last_resources() == {one: "till"}
    new.record(one, [])
    assert old.decisions()[one] == []
    assert old.abort(two)
    with pytest.raises(Refused):
        new.note_last(two, "till")


def test_a_process_of_the_former_version_has_no_timeout_that_anybody_knows(
    site: Former, old: FormerProcess, new: DecisionLog
) -> None:
    name = new.incarnation
    new.note_timeout(make_gtrid("etl-1", name, 1), 2.0)
    assert new.timeouts() == {name: 2.0}
    assert old.lives()[name] == "alive"
    assert old.fence(name)
    old.expire(name)
    assert name in new.timeouts()
    new.retire_timeouts()
    assert new.timeouts() == {}


def test_what_the_former_version_moves_away_leaves_no_memo_for_ever(old: FormerProcess, new: DecisionLog) -> None:
    name = new.incarnation
    assert old.fence(name)
    old.expire(name)
    assert name in new.incarnations_noting()
    with pytest.raises(Refused):
        new.record(make_gtrid("etl-1", name, 1), [])
    later = new.incarnation
    new.expire([name, later])  # which lives, and stays
    assert new.incarnations_noting() == {later}


def test_memos_are_understood_both_ways(site: Former, old: FormerProcess, new: DecisionLog) -> None:
    """As the former version reads them: with no key but those that it knows."""
    with audited(new, "commit", "", "by this version"):
        pass
    deed = old.side_records("audit")[-1]
    assert deed.keys() == {"when", "who", "command", "gtrid", "reason", "outcome"}
    assert (deed["command"], deed["reason"], deed["outcome"]) == ("commit", "by this version", "done")
    suspend(new, "by this version")
    assert all(held.keys() == {"node", "since", "who", "reason"} for held in old.side_records("suspended"))
    resume(new)
    old.put_record(
        "suspended", "etl-1", json.dumps({"node": "etl-1", "since": 1.0, "who": "them", "reason": "by theirs"})
    )
    held = suspension(new)
    assert held is not None
    assert held.reason == "by theirs"
    resume(new)
    site.configure(nodes="*" if site.store == "server" else "", more="recovery.expiry.interval = 1h")
    with closing(RecoveryManager(site.conf)) as manager:
        manager.scan()
    (since,) = old.side_records("expiry")
    named = {entry for entry in since if entry.startswith("incarnation ")}
    assert named
    assert all(isinstance(since[entry], float) for entry in named)
    (moved,) = old.side_records("expired")
    kind, _, *rest = moved
    assert (kind, [len(fields) for fields in rest]) == ("heuristic", [6])


def test_a_living_process_of_the_former_version_is_left_alone_and_a_dead_one_recovered(
    site: Former, old: FormerProcess
) -> None:
    site.configure(recovery_user="txpool", nodes="*" if site.store == "server" else "")
    gid = f"{make_gtrid(node_of(site), old.name, 1)}:0:one:L"
    with site.session("one") as connection:
        connection.execute("begin")
        connection.execute(sql.SQL("prepare transaction {}").format(gid))
    # With every node ours, the branch of etl-9 is of an unknown incarnation, and stays as well.
    with closing(RecoveryManager(site.conf)) as manager:
        manager.scan()
        assert site.databases.prepared() == sorted([*LEFT_ALONE, gid])
        old.close()
        manager.scan()
    assert site.databases.prepared() == LEFT_ALONE


@pytest.mark.costly
def test_this_version_works_in_what_the_former_has_left_and_notes_where(site: Former) -> None:
    started = [
        site.start(WRITER, "21", "one", "two", failpoints="coordinator.decided=kill"),
        site.start(WRITER, "22", "one", "two", failpoints="coordinator.prepared=kill"),
        site.start(WRITER, "23", "one", "two", "ledger", failpoints="marked.committed=kill"),
        site.start(WRITER, "24", "one", "book", failpoints="marked.committed=kill"),
        site.start(WRITER, "25", "one", "two"),
    ]
    for process in started:
        output, errors = process.communicate(timeout=600)
        assert process.returncode in (0, -signal.SIGKILL), output + errors
    site.disconnect()
    notes = texts(site.kept("memos where kind = 'datasource'", "text"))
    assert sorted((note["format"], note["node"], note["datasource"]) for note in notes) == [
        ("1", "etl-1", "one"),
        ("1", "etl-1", "two"),
    ]
    noting = site.kept("memos where kind = 'incarnation'", "name, text")
    assert [number for _, number in noting] == ["1"] * len(started)
    site.configure(recovery_user="txpool")
    with closing(RecoveryManager(site.conf)) as manager:
        assert not manager.scan().errors
    assert site.databases.prepared() == LEFT_ALONE
    assert site.rows() == {
        "one": [*COMMITTED["one"], 21, 23, 24, 25],
        "two": [*COMMITTED["two"], 21, 23, 24, 25],
        "ledger": [*COMMITTED["ledger"], 23],
    }
