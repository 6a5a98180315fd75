"""Whose branches count on a real server: roles that a session takes on or that are named, and what people are told."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from recovery.cli import ExitCode
from tests.support.recovery_site import BOTH, PASSWORD, WRITER, Site, daemon, extend, get
from txpool.config.settings import CoordinatorSettings
from txpool.datasource import DataSource
from txpool.errors import TransactionRolledBack
from txpool.log.memory import MemoryDisk, MemoryLog
from txpool.tm.demarcation.calls import resume, suspend
from txpool.tm.manager import TransactionManager
from txpool.xid import make_xid

_ROLES = ("app", "team", "weak")
#: The application's own SQL takes another role on, and its work is that role's.
AS_TEAM = WRITER.replace(
    'connect(f"{name}.properties").cursor().execute("insert into t values (1)")',
    'cursor = connect(f"{name}.properties").cursor(); cursor.execute("set role team"); '
    'cursor.execute("insert into t values (1)")',
)


@pytest.fixture
def plain(site: Site) -> Iterator[Site]:
    """The datasources' user is no superuser: `app`, a member of `team`, which owns the tables. `weak` may connect."""
    password = site.databases.server.password
    for role in _ROLES:
        site.databases.execute("one", f"drop role if exists {role}")  # type: ignore[arg-type]
        site.databases.execute("one", f"create role {role} login password '{password}'")  # type: ignore[arg-type]
    site.databases.execute("one", "grant team to app")
    for name in BOTH:
        site.databases.execute(name, "alter table t owner to team")  # type: ignore[arg-type]
        site.databases.execute(name, "grant usage on schema public to team, app")  # type: ignore[arg-type]
        text = (site.folder / f"{name}.properties").read_text().replace(f"//{site.databases.server.user}@", "//app@")
        site.write(name, text.strip())
    yield site
    for gid in site.databases.prepared():
        for name in BOTH:
            query = "select 1 from pg_prepared_xacts where gid = %s and database = current_database()"
            if site.databases.rows(name, query, [gid]):
                with psycopg.connect(site.databases.dsn(name), autocommit=True) as connection:
                    connection.execute(sql.SQL("rollback prepared {}").format(gid))
    for name in BOTH:
        site.databases.execute(name, "drop owned by app, team, weak cascade")  # type: ignore[arg-type]
    site.databases.execute("one", "alter role app reset all")
    site.databases.execute("one", "drop role app, team, weak")


@pytest.mark.parametrize("point", ["coordinator.prepared", "coordinator.decided"])
@pytest.mark.parametrize("way", ["set role", "alter role"])
def test_a_role_that_the_login_is_a_member_of_counts(plain: Site, way: str, point: str) -> None:
    if way == "alter role":
        plain.databases.execute("one", "alter role app set role = team")
    plain.killed(AS_TEAM if way == "set role" else WRITER, *BOTH, failpoints=f"{point}=kill")
    assert {owner for (owner,) in plain.databases.rows("one", "select owner::text from pg_prepared_xacts")} == {"team"}
    scan = plain.command("scan")
    assert scan.returncode == ExitCode.OK, scan.stderr
    assert plain.databases.prepared() == []
    count = int(point == "coordinator.decided")
    assert plain.counts() == {"one": count, "two": count, "ledger": 0}


def test_a_superuser_is_a_member_of_nothing(plain: Site) -> None:
    """Recovery that connects as one takes no stranger's branch for its own; the configuration may name the role."""
    plain.killed(WRITER, *BOTH, failpoints="coordinator.prepared=kill")
    gtrid = ":".join(plain.databases.prepared()[0].split(":")[:4])
    forged = f"{gtrid}:9:b:L"
    with psycopg.connect(plain.databases.dsn("one") + " user=weak") as connection:
        connection.execute(sql.SQL("prepare transaction {}").format(forged))
    user = plain.databases.server.user
    for name in BOTH:
        text = (plain.folder / f"{name}.properties").read_text()
        plain.write(name, f"{text}\nrecovery.user = {user}\nrecovery.password = ${{env:{PASSWORD}}}")
    assert plain.command("scan").returncode == ExitCode.FOREIGN
    assert plain.databases.prepared() == [forged]
    plain.write("one", (plain.folder / "one.properties").read_text() + "prepared.owners = weak, another")
    assert plain.command("scan").returncode == ExitCode.OK
    assert plain.databases.prepared() == []


def test_what_refuses_to_end_is_told_with_its_owner_and_the_databases_own_words(plain: Site) -> None:
    plain.killed(WRITER, *BOTH, failpoints="coordinator.decided=kill")
    for name in BOTH:
        text = (plain.folder / f"{name}.properties").read_text()
        plain.write(name, f"{text}\nrecovery.user = weak\nrecovery.password = ${{env:{PASSWORD}}}")
    extend(plain, "status.address = 127.0.0.1:0")
    with daemon(plain) as (_, url):
        page, found = get(url), json.loads(get(f"{url}api/in-doubt"))["in_doubt"]
        metrics = get(f"{url}metrics")
    assert "owner app" in page
    assert "permission denied" in page
    (listed,) = json.loads(plain.command("list", "--json").stdout)
    for branches in (found[0]["branches"], listed["branches"]):
        assert {branch["owner"] for branch in branches} == {"app"}
        assert all("permission denied" in branch["error"] for branch in branches)
    (line,) = [line for line in metrics.splitlines() if line.startswith("txpool_oldest_indoubt_seconds ")]
    assert float(line.split()[1]) > 0
    assert "permission denied" in plain.command("show", listed["gtrid"]).stdout
    for name in BOTH:
        text = (plain.folder / f"{name}.properties").read_text()
        plain.write(name, text.partition("recovery.user")[0].strip())
    assert plain.command("scan").returncode == ExitCode.OK
    assert plain.command("list", "--json").stdout.strip() == "[]"


def test_a_name_that_somebody_has_taken_is_told_with_its_owner(plain: Site) -> None:
    """Denial, not deceit: the transaction rolls back."""
    with psycopg.connect(plain.databases.dsn("one") + " user=weak", autocommit=True) as connection:
        manager = TransactionManager(CoordinatorSettings.load())
        manager._log = MemoryLog(MemoryDisk("etl-1"), node="etl-1")
        sources = [DataSource.from_properties(plain.folder / f"{name}.properties") for name in BOTH]
        transaction = manager.new_transaction()
        taken = make_xid(transaction.gtrid, 0, "one")
        connection.execute("begin")
        connection.execute(sql.SQL("prepare transaction {}").format(taken.joined))
        resume(transaction)
        try:
            for source in sources:
                source.connect().cursor().execute("set role team")
                source.connect().cursor().execute("insert into t values (1)")
            with pytest.raises(TransactionRolledBack) as raised:
                transaction.commit()
        finally:
            suspend()
            for source in sources:
                source.close()
    cause = raised.value.__cause__
    assert isinstance(cause, psycopg.errors.DuplicateObject)
    notes = " ".join(cause.__notes__)
    assert "belongs to the role weak" in notes
    assert plain.databases.prepared() == [taken.joined]
    assert plain.counts() == {"one": 0, "two": 0, "ledger": 0}


@pytest.mark.parametrize("point", ["coordinator.prepared", "coordinator.decided"])
def test_two_datasources_lead_to_one_database_as_different_roles(plain: Site, point: str) -> None:
    """Each branch is for the one whose role may end it, whichever is asked first."""
    plain.databases.execute("one", "grant usage on schema public to weak; grant insert on t to weak")
    text = (plain.folder / "one.properties").read_text()
    plain.write("third", text.replace("//app@", "//weak@").strip())
    conf = plain.conf.read_text().replace("ledger.properties", "third.properties, ledger.properties")
    plain.write("recovery", conf.strip())
    plain.killed(WRITER, "third", "two", failpoints=f"{point}=kill")
    scan = plain.command("scan")
    assert scan.returncode == ExitCode.OK, scan.stdout + scan.stderr
    assert plain.databases.prepared() == []
    count = int(point == "coordinator.decided")
    assert plain.counts() == {"one": count, "two": count, "ledger": 0}


def test_one_of_them_names_further_owners(plain: Site) -> None:
    plain.killed(WRITER, *BOTH, failpoints="coordinator.prepared=kill")
    gtrid = ":".join(plain.databases.prepared()[0].split(":")[:4])
    with psycopg.connect(plain.databases.dsn("one") + " user=weak") as connection:
        connection.execute(sql.SQL("prepare transaction {}").format(f"{gtrid}:9:third:L"))
    user = plain.databases.server.user
    text = (plain.folder / "one.properties").read_text().strip()
    also = f"recovery.user = {user}\nrecovery.password = ${{env:{PASSWORD}}}\nprepared.owners = weak"
    plain.write("third", f"{text}\n{also}")
    conf = plain.conf.read_text().replace("ledger.properties", "third.properties, ledger.properties")
    plain.write("recovery", conf.strip())
    scan = plain.command("scan")
    assert scan.returncode == ExitCode.OK, scan.stdout + scan.stderr
    assert plain.databases.prepared() == []
