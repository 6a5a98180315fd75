"""Rule 32, seen from recovery: what a role that may only connect holds and makes keeps nothing from being ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.recovery_site import WRITER, Site
from tests.support.strangers import EVIL, Strangers, ran
from txpool.resources.postgresql.log.server import key_of
from txpool.xid import parse


@pytest.mark.parametrize("how", ["a session", "a prepared transaction"])
def test_32_who_holds_a_dead_ones_lock_keeps_nothing_waiting(tmp_path: Path, strangers: Strangers, how: str) -> None:
    """The key is in the names of what is prepared, which everybody sees."""
    site = Site(tmp_path, strangers.databases, store="sql")
    site.killed(WRITER, "one", "two", failpoints="coordinator.prepared=kill")
    xids = [parse(gid) for gid in site.databases.prepared()]
    assert len(xids) == 2
    assert xids[0] is not None
    key = key_of(xids[0].gtrid.split(":")[2])
    with strangers.session("mallory") as mallory:
        if how == "a session":
            mallory.execute("select pg_advisory_lock(%s)", [key])
        else:
            mallory.execute("begin")
            mallory.execute("select pg_advisory_xact_lock(%s)", [key])
            mallory.execute("prepare transaction 'a lock for ever'")
        scan = site.command("scan")
    assert scan.returncode == 0, scan.stdout + scan.stderr
    assert site.databases.prepared() == (["a lock for ever"] if how == "a prepared transaction" else [])
    assert site.counts() == {"one": 0, "two": 0, "ledger": 0}


def test_32_tables_that_are_called_as_staging_tables_are_keep_nothing_waiting(
    tmp_path: Path, strangers: Strangers
) -> None:
    """One that recovery may not drop would fail each of its scans."""
    site = Site(tmp_path, strangers.databases)
    site.killed(WRITER, "one", "two", failpoints="coordinator.prepared=kill")
    (xid,) = (xid for gid in site.databases.prepared() if (xid := parse(gid)) and xid.bqual.startswith("0:one"))
    name = f'txpool_spark."{xid.gtrid}:0"'
    strangers.does(
        "mallory",
        *EVIL,
        "create schema txpool_spark",
        f"create table {name} (id bigint)",
        f"create trigger t before insert or delete or update on {name} execute function evil.tell()",
        f"grant all on {name} to public",
    )
    strangers.does("mallory", "grant all on schema txpool_spark to public")
    site.write("one", f"driver = psycopg\nurl = {strangers.url()}\npassword = ${{env:TXPOOL_TEST_RECOVERY_PASSWORD}}")
    # The datasource is app's now, who may not end what was prepared there: only the table is to be left.
    strangers.admin(f"rollback prepared '{xid.joined}'")
    scan = site.command("scan")
    assert scan.returncode == 0, scan.stdout + scan.stderr
    assert site.databases.prepared() == []
    assert ran(strangers.databases) == []
    assert strangers.databases.rows("one", "select count(*) from pg_tables where schemaname = 'txpool_spark'") == [(1,)]
