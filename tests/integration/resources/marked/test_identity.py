"""Rows, tombstones and deletions go into the very table that decides, and into no other."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.integration.resources.marked.ledger import Ledger, new_gtrid, others
from txpool.config.secrets import Secret
from txpool.config.settings import DataSourceSettings
from txpool.errors import Error
from txpool.resources.base import Refused, decode
from txpool.resources.driver.making import make_driver
from txpool.resources.driver.marks import IDENTITY
from txpool.resources.marked.xids import Xids
from txpool.xid import make_xid, parse

if TYPE_CHECKING:
    from tests.conftest import Databases


def test_branches_name_the_very_table_that_decides(ledger: Ledger) -> None:
    branch = ledger.branch()
    ((identity,),) = ledger.query_rows(f"select action_uid from xids where xid = '{IDENTITY}'")
    assert branch.identity() == identity
    named = make_xid(new_gtrid(), 0, "two", decider="ledger", identity=branch.identity())
    read = parse(named.joined)
    assert read is not None
    assert (read.decider, read.identity) == ("ledger", identity)
    branch.rollback()
    ledger.xids.create()
    assert ledger.query_rows(f"select action_uid from xids where xid = '{IDENTITY}'") == [(identity,)]


def test_an_old_table_gets_its_identity_at_first_use(ledger: Ledger) -> None:
    ledger.write("delete from xids")
    first, second = ledger.marked(), None
    # SQLite's one writer is the transaction itself, which may yet roll back: it names none.
    assert bool(first[0].identity()) is not ledger.sqlite
    first[0].record(first[1], others(first[1]))
    second = ledger.decided()[0].identity()
    assert ledger.query_rows(f"select action_uid from xids where xid = '{IDENTITY}'") == [(second,)]
    assert not ledger.xids.tombstone(new_gtrid(), second).committed


@pytest.mark.parametrize("there", ["another", "none"])
def test_a_tombstone_never_goes_into_another_table(ledger: Ledger, there: str) -> None:
    branch, gtrid = ledger.marked()
    identity = branch.identity()
    branch.rollback()
    ledger.write("delete from xids")
    if there == "another":
        ledger.xids.create()
    with pytest.raises(Error, match="leads to another table"):
        Xids("ledger", ledger.driver).tombstone(gtrid, identity)
    assert ledger.rows() == {}


def test_a_row_never_goes_into_another_table_and_the_next_goes_by_what_is_there(ledger: Ledger) -> None:
    ledger.decided()
    ledger.write("delete from xids")
    ledger.xids.create()
    branch, gtrid = ledger.branch(), new_gtrid()
    with pytest.raises(Refused, match="not the one"):
        branch.mark(gtrid, others(gtrid))
    branch.rollback()
    assert ledger.rows() == {}
    branch, gtrid = ledger.decided()
    assert ledger.rows() == {gtrid: "commit"}
    assert ledger.query_rows(f"select action_uid from xids where xid = '{IDENTITY}'") == [(branch.identity(),)]


@pytest.mark.parametrize("identity", ["short", "x''; select 1", "ABCDEFGHIJKL"])
def test_an_identity_that_recovery_would_not_know_names_no_branch(ledger: Ledger, identity: str) -> None:
    ledger.write(f"update xids set action_uid = '{identity}' where xid = '{IDENTITY}'")
    branch = ledger.branch()
    with pytest.raises(Error, match="which txpool has not written"):
        branch.identity()
    branch.rollback()
    with pytest.raises(Error, match="which txpool has not written"):
        Xids("ledger", ledger.driver).tombstone(new_gtrid(), "another00000")
    assert ledger.rows() == {}


def test_marks_are_not_deleted_in_another_table(ledger: Ledger) -> None:
    branch, gtrid = ledger.decided()
    ledger.write(f"update xids set action_uid = 'another00000' where xid = '{IDENTITY}'")
    branch.forget(gtrid)
    with pytest.raises(Error, match="leads to another table"):
        ledger.cleanup.flush()
    assert ledger.rows() == {gtrid: "commit"}
    assert len(ledger.cleanup) == 1


def test_a_restored_copy_is_another_table(pg: Ledger, databases: Databases) -> None:
    """To the letter the same, but for the place: a dump that was restored under another name."""
    identity = pg.branch(None).identity()
    for raw in pg.raws:
        raw.close()
    databases.execute("two", "drop database if exists one_restored")
    databases.execute("two", "create database one_restored template one")
    url = databases.url("one").replace("/one", "/one_restored")
    settings = DataSourceSettings.load(
        name="ledger", driver="psycopg", mode="cmr", url=url, password=Secret(databases.server.password)
    )
    there = Xids("ledger", make_driver(settings))
    try:
        with pytest.raises(Error, match=r"created in database \d+/\d+, and the url leads to \d+/\d+"):
            there.tombstone(new_gtrid(), identity)
        # Whoever works there from now on works with a table of its own.
        with closing(make_driver(settings).connect()) as raw:
            assert there.identity(raw) != identity
        assert not there.tombstone(new_gtrid(), there.identity(None)).committed
    finally:
        databases.execute("two", "drop database one_restored with (force)")
    assert pg.rows() == {}


def test_search_path_and_temporary_tables_hide_no_mark(ledger: Ledger) -> None:
    ledger.decided()
    branch, gtrid = ledger.branch(None), new_gtrid()
    ledger.driver.begin(ledger.raw)
    ledger.raw.execute("create temporary table xids as select * from xids")
    if ledger.mysql:  # where it hides the table behind any name
        with pytest.raises((Refused, Error), match=r"temporary table hides|reopen table"):
            branch.mark(gtrid, others(gtrid))
        branch.rollback()
        return
    if not ledger.sqlite:
        ledger.raw.execute("create schema elsewhere")
        ledger.raw.execute("create table elsewhere.xids (like public.xids including all)")
        ledger.raw.execute("set local search_path = elsewhere")
    branch.mark(gtrid, others(gtrid))
    branch.record(gtrid, others(gtrid))
    assert gtrid in {row.gtrid for row in ledger.xids.read()}


def test_a_row_is_sealed_in_the_table_that_it_was_written_into(pg: Ledger) -> None:
    """Whatever another transaction has found meanwhile: that the datasource leads elsewhere now."""
    branch, gtrid = pg.marked()
    pg.write("create schema elsewhere")
    pg.write("create table elsewhere.xids (like public.xids including all)")
    pg.write("alter database one set search_path = elsewhere, public")
    pg.write(f"update public.xids set action_uid = 'another00000' where xid = '{IDENTITY}'")
    stray, other = pg.branch(), new_gtrid()
    with pytest.raises(Refused, match="not the one"):
        stray.mark(other, others(other))
    voted = [record._replace(evidence={"xid": "77"}) for record in others(gtrid)]
    branch.record(gtrid, voted)
    [(kept,)] = pg.query_rows(f"select branches from public.xids where xid = '{gtrid}'")
    assert list(decode(gtrid, kept)) == voted


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_serializable_neighbours_do_not_fail_for_the_identity(pg: Ledger, level: str) -> None:
    pg.decided()
    both = []
    for _ in range(2):
        branch, gtrid = pg.branch(None), new_gtrid()
        pg.raw.isolation_level = psycopg.IsolationLevel[level.replace(" ", "_").upper()]
        pg.raw.execute("insert into work values (1, null)")
        branch.mark(gtrid, others(gtrid))
        both.append((branch, gtrid))
    for branch, gtrid in both:
        branch.record(gtrid, others(gtrid))
    assert {gtrid for _, gtrid in both} <= pg.rows().keys()
