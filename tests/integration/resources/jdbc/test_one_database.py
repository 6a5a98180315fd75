"""One PostgreSQL database by psycopg and by JDBC is one database, and either driver recovers the other's branches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.conftest import Databases
from tests.support.jdbc_places import JdbcPlaces
from txpool.config.secrets import Secret
from txpool.datasource import DataSource
from txpool.resources.base import BranchOutcome, BranchRecord, PrepareVote
from txpool.resources.deadlines import NO_DEADLINES
from txpool.resources.jdbc.branches import codes
from txpool.resources.jdbc.branches.xid import java_xid
from txpool.xid import Xid, make_gtrid, make_xid, new_incarnation

GTRID = make_gtrid("tests", new_incarnation(), 1)


@pytest.fixture
def both(jdbc_places: JdbcPlaces, databases: Databases) -> dict[str, DataSource]:
    java = jdbc_places.open("postgresql")
    psycopg = DataSource(
        "psycopg", driver="psycopg", url=databases.url("one"), password=Secret(databases.server.password)
    )
    jdbc_places.opened.append(psycopg)
    return {"jdbc": java, "psycopg": psycopg}


def prepare(source: DataSource, number: int) -> Any:
    raw = source.driver_adapter.connect()
    branch = source.resource_manager.branch(source.name, source.driver_adapter, raw, NO_DEADLINES, file="")
    branch.name(make_xid(f"{GTRID}{number}", 0, source.name))
    source.driver_adapter.begin(raw)
    source.driver_adapter.execute(raw, f"insert into t (id) values ({number})")
    branch.start_prepare()
    assert branch.await_prepare() is PrepareVote.COMMIT
    source.driver_adapter.close(raw)
    return branch.record


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(("prepares", "ends"), [("jdbc", "psycopg"), ("psycopg", "jdbc")])
def test_either_recovers_the_others(
    both: dict[str, DataSource], databases: Databases, prepares: str, ends: str, commit: bool
) -> None:
    ours, theirs = both[prepares].branch_recovery(), both[ends].branch_recovery()
    assert ours.identity() == theirs.identity() != ""
    assert ours.logins() == theirs.logins()
    record = prepare(both[prepares], 1)
    (own,), (found,) = ours.recover(), theirs.recover()
    assert (found.xid, found.owner, found.evidence) == (record.xid, own.owner, record.evidence)
    assert found.evidence == own.evidence
    assert found.prepared_by(theirs.logins())
    outcome = theirs.commit(record) if commit else theirs.rollback(record)
    assert outcome is (BranchOutcome.COMMITTED if commit else BranchOutcome.ROLLED_BACK)
    # The server shows how it ended, whoever asks.
    assert ours.commit(record) is theirs.commit(record) is outcome
    assert databases.rows("one", "select id from t") == ([(1,)] if commit else [])


def test_both_in_one_transaction(both: dict[str, DataSource], databases: Databases, tmp_path: Path) -> None:
    """Two branches of one database, as of two datasources over psycopg."""
    txpool.configure(node_name="etl-1", log_url=f"sqlite:///{tmp_path}/txlog", log_create=True)
    with txpool.transaction():
        both["jdbc"].connect().cursor().execute("insert into t (id) values (1)")
        both["psycopg"].connect().cursor().execute("insert into t (id) values (2)")
    assert databases.rows("one", "select id from t order by id") == [(1,), (2,)]
    assert databases.prepared() == []
    txpool.configure()


def test_what_pgjdbc_itself_has_prepared(both: dict[str, DataSource], databases: Databases) -> None:
    """It writes the same names in another way."""
    java = both["jdbc"]
    recovery = java.branch_recovery()
    foreign = Xid("other-product", "1")
    names = [make_xid(f"{GTRID}{number}", 0, "postgresql") for number in (5, 6)]
    for number, xid in enumerate((*names, foreign)):
        raw = java.driver_adapter.connect()
        resource, name = raw.xa, java_xid(xid)
        resource.start(name, codes.TMNOFLAGS)
        raw.run("insert into t (id) values (?)", [number]).close()
        resource.end(name, codes.TMSUCCESS)
        assert resource.prepare(name) == 0
        java.driver_adapter.close(raw)
    assert {each.xid for each in recovery.recover()} == {*names}
    records = [BranchRecord(xid, "postgresql", recovery.identity()) for xid in names]
    assert recovery.commit(records[0]) is BranchOutcome.COMMITTED
    assert recovery.rollback(records[1]) is BranchOutcome.ROLLED_BACK
    assert databases.rows("one", "select id from t") == [(0,)]
    assert len(databases.prepared()) == 1, "the other product's"
