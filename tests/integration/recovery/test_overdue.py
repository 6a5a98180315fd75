"""A living process that hangs after its prepares: what recovery tells of it, and what it does where it may."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from recovery.cli import ExitCode
from recovery.scan import snapshot
from recovery.scan.modules import overdue
from tests.support.mysql import MySQLServer
from tests.support.recovery_site import BOTH, HOLDER, Site, connected_first, extend
from tests.support.waiting import until
from txpool import failpoints

#: A process that has prepared would decide at once, but for this.
PREPARED = "coordinator.prepared=hang"


@pytest.fixture(params=["sqlite", "sql"])
def stored(request: pytest.FixtureRequest, tmp_path: Path, databases: Any) -> Site:
    return Site(tmp_path, databases, store=request.param)


@contextmanager
def stopped(site: Site, *names: str, timeout: str = "2") -> Iterator[tuple[Any, str]]:
    """A process that is prepared, and is stopped by SIGSTOP; its gtrid."""
    text = (site.folder / "txpool.properties").read_text().strip()
    site.write("txpool", f"{text}\ntransaction.timeout = {timeout}")
    process = site.process(connected_first(HOLDER), *names, failpoints=PREPARED)
    try:
        gtrid = process.stdout.readline().strip()
        prepared = set(names) & set(BOTH)
        until(lambda: len(site.databases.prepared()) >= len(prepared) or process.poll() is not None)
        assert process.poll() is None, process.stderr.read()
        os.kill(process.pid, signal.SIGSTOP)
        yield process, gtrid
    finally:
        process.kill()
        process.communicate()


@pytest.mark.costly
def test_38_a_stopped_process_is_told_of_by_scan_list_and_show(stored: Site) -> None:
    with stopped(stored, *BOTH) as (process, gtrid):
        until(lambda: stored.command("scan").returncode == ExitCode.OVERDUE)
        listed = stored.command("list")
        assert listed.returncode == ExitCode.IN_DOUBT
        assert "See whether it hangs" in listed.stdout
        (alarm,) = json.loads(stored.command("scan", "--json").stdout)["alarms"]
        assert (alarm["kind"], alarm["subject"]) == ("overdue", gtrid)
        assert "within 2 s" in alarm["text"]
        assert len(stored.databases.prepared()) == 2
        process.send_signal(signal.SIGKILL)
        process.communicate()
        until(lambda: stored.command("scan").returncode == ExitCode.OK)
    assert stored.databases.prepared() == []
    assert stored.counts() == {"one": 0, "two": 0, "ledger": 0}


def test_38_without_a_timeout_nobody_can_tell(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MARGIN_SECONDS", 0.0)
    with stopped(site, *BOTH, timeout="none"), closing(site.manager()) as manager:
        assert manager.scan().alarms == ()


# -- recovery.overdue-rollback ------------------------------------------------------------------------------------

#: It stops itself at a point, says how its transaction has ended once it goes on, and commits another one.
TELLER = """
    import os, signal, sys
    from txpool import failpoints
    from txpool.datasource import connect
    from txpool.errors import Error
    from txpool.tm.manager import configure
    from txpool.tm.demarcation.block import transaction

    configure("txpool.properties")
    point, *names = sys.argv[1:]
    for name in names:
        connect(f"{name}.properties").close()  # the time for that is not the transaction's
    failpoints.arm(point, lambda: os.kill(os.getpid(), signal.SIGSTOP))
    try:
        with transaction() as tx:
            print(tx.gtrid, flush=True)
            for name in names:
                connect(f"{name}.properties").cursor().execute("insert into t values (1)")
    except Error as error:
        print(f"told: {type(error).__name__}", flush=True)
    else:
        print("told: committed", flush=True)
    failpoints.disarm()
    with transaction():
        for name in names:
            connect(f"{name}.properties").cursor().execute("insert into t values (2)")
    print("again: committed", flush=True)
"""


def state_of(process: Any) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextmanager
def stopping(site: Site, point: str, *names: str) -> Iterator[tuple[Any, str]]:
    """A process with timeouts of 3 s that has stopped itself there, prepared; its gtrid."""
    text = (site.folder / "txpool.properties").read_text().strip()
    site.write("txpool", f"{text}\ntransaction.timeout = 3")
    process = site.process(TELLER, point, *names)
    try:
        gtrid = process.stdout.readline().strip()
        until(lambda: state_of(process) == "T")
        yield process, gtrid
    finally:
        process.kill()
        process.communicate()


def resumed(process: Any) -> list[str]:
    """What it says once it goes on, until it has ended."""
    os.kill(process.pid, signal.SIGCONT)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return str(output).splitlines()


@pytest.fixture
def without_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (snapshot, overdue):
        monkeypatch.setattr(module, "MARGIN_SECONDS", 0.0)


def numbers(site: Site, name: str) -> list[int]:
    return [number for (number,) in site.databases.rows(name, "select id from t order by id")]


@pytest.mark.usefixtures("without_margin")
def test_38_it_is_rolled_back_and_its_process_goes_on_with_another(stored: Site) -> None:
    extend(stored, "recovery.overdue-rollback = 1ms")
    with stopping(stored, "log.record", *BOTH) as (process, gtrid), closing(stored.manager()) as manager:
        until(lambda: len(manager.scan().rolled_back) == 2)
        assert stored.databases.prepared() == []
        assert manager.show(gtrid) is not None
        assert resumed(process) == ["told: TransactionRolledBack", "again: committed"]
        assert numbers(stored, "one") == numbers(stored, "two") == [2]
        until(lambda: manager.scan().errors == {} and stored.kept() == {})


@pytest.mark.usefixtures("without_margin")
def test_38_its_process_goes_on_right_behind_the_abort_record(stored: Site) -> None:
    extend(stored, "recovery.overdue-rollback = 1ms")
    said: list[str] = []
    with stopping(stored, "log.record", *BOTH) as (process, _), closing(stored.manager()) as manager:
        with failpoints.arming("recovery.branch", lambda: said.extend(resumed(process))):
            until(lambda: manager.scan() and said)
        assert said == ["told: TransactionRolledBack", "again: committed"]
        assert numbers(stored, "one") == numbers(stored, "two") == [2]
        assert manager.last_report is not None
        assert manager.last_report.heuristics == ()
        until(lambda: manager.scan().errors == {} and stored.kept() == {})


@pytest.mark.usefixtures("without_margin")
def test_38_what_is_decided_is_its_process_s_however_long_it_hangs(stored: Site) -> None:
    extend(stored, "recovery.overdue-rollback = 1ms")
    with stopping(stored, "coordinator.decided", *BOTH) as (process, gtrid), closing(stored.manager()) as manager:
        until(lambda: [alarm.subject for alarm in manager.scan().alarms] == [gtrid])
        assert len(stored.databases.prepared()) == 2
        assert resumed(process) == ["told: committed", "again: committed"]
    assert numbers(stored, "one") == numbers(stored, "two") == [1, 2]


@pytest.mark.costly
def test_38_a_recovery_that_is_killed_behind_the_abort_record_and_one_that_may_not_begin(stored: Site) -> None:
    plain = stored.conf.read_text().strip()
    extend(stored, "recovery.overdue-rollback = 1s")
    with stopping(stored, "log.record", *BOTH) as (process, _):
        until(lambda: stored.command("scan", failpoints="recovery.branch=kill").returncode == -signal.SIGKILL)
        assert stored.kept() == {"decisions": 1}
        assert len(stored.databases.prepared()) == 2
        stored.write("recovery", plain)
        scanned = stored.command("scan")
        assert scanned.returncode == ExitCode.OK, scanned.stdout
        assert "2 rolled back" in scanned.stdout
        assert resumed(process) == ["told: TransactionRolledBack", "again: committed"]
    assert numbers(stored, "one") == numbers(stored, "two") == [2]


@pytest.mark.usefixtures("without_margin")
def test_38_a_marked_row_that_is_open_is_waited_for_no_longer_than_its_lock_timeout(site: Site) -> None:
    extend(site, "recovery.overdue-rollback = 1ms")
    with stopping(site, "marked.commit", *BOTH, "ledger") as (process, gtrid), closing(site.manager()) as manager:
        until(lambda: any("ledger decides it and has not answered" in left.reason for left in manager.scan().pending))
        assert [alarm.subject for alarm in manager.scan().alarms] == [gtrid]
        assert len(site.databases.prepared()) == 2
        assert resumed(process) == ["told: committed", "again: committed"]
    assert site.counts() == {"one": 2, "two": 2, "ledger": 2}


@pytest.mark.usefixtures("without_margin")
def test_38_beside_a_last_resource_there_is_only_the_alarm(site: Site) -> None:
    extend(site, "recovery.overdue-rollback = 1ms")
    site.write("till", "driver = sqlite3\nmode = last-resource\nurl = sqlite:///till.db")
    with closing(sqlite3.connect(site.folder / "till.db")) as till:
        till.execute("create table t (id int)")
    with stopping(site, "log.record", *BOTH, "till") as (process, gtrid), closing(site.manager()) as manager:
        until(lambda: [alarm.subject for alarm in manager.scan().alarms] == [gtrid])
        assert "Its last resource till may have committed" in manager.scan().alarms[0].text
        assert len(site.databases.prepared()) == 2
        assert resumed(process) == ["told: committed", "again: committed"]
    assert site.counts() == {"one": 2, "two": 2, "ledger": 0}


def add_shop(site: Site, mariadb: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that tells no age beside those of the site."""
    mariadb.empty()
    mariadb.execute("create table t (id int) engine=innodb", database="one")
    monkeypatch.setenv("SHOP_PASSWORD", mariadb.password)
    site.write("shop", f"driver = pymysql\nurl = {mariadb.url('one')}\npassword = ${{env:SHOP_PASSWORD}}")
    site.write("recovery", site.conf.read_text().replace("one.properties", "one.properties, shop.properties").strip())


@pytest.mark.slow
@pytest.mark.usefixtures("without_margin")
def test_38_a_server_that_tells_no_age_and_holds_the_branch_for_its_session(
    site: Site, mariadb: MySQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The age is how long this recovery has seen it; the branch ends once its process goes on, or its session ends."""
    add_shop(site, mariadb, monkeypatch)
    extend(site, "recovery.overdue-rollback = 1ms")
    with stopping(site, "log.record", "shop", "one") as (process, _), closing(site.manager()) as manager:
        until(lambda: manager.scan().rolled_back)
        until(lambda: site.databases.prepared() == [] or not manager.scan())
        assert resumed(process) == ["told: TransactionRolledBack", "again: committed"]
        assert manager.scan().heuristics == ()
    assert numbers(site, "one") == [2]
    assert mariadb.execute("select id from t", database="one") == [(2,)]
    mariadb.empty()


@pytest.mark.costly
@pytest.mark.parametrize("point", ["log.record", "coordinator.decided"])
def test_38_commands_tell_of_it_though_the_server_tells_no_age(
    site: Site, mariadb: MySQLServer, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Each command is a process of its own: the log keeps when the first one has seen it."""
    add_shop(site, mariadb, monkeypatch)
    mariadb.execute("create table t (id int) engine=innodb", database="two")
    site.write("shop2", f"driver = pymysql\nurl = {mariadb.url('two')}\npassword = ${{env:SHOP_PASSWORD}}")
    site.write(
        "recovery", site.conf.read_text().replace("shop.properties", "shop.properties, shop2.properties").strip()
    )
    with stopping(site, point, "shop", "shop2") as (process, _):
        until(lambda: site.command("scan").returncode == ExitCode.OVERDUE)
        listed = site.command("list")
        assert listed.returncode == ExitCode.IN_DOUBT
        assert ("recovery commits it" in listed.stdout) is (point == "coordinator.decided")
        assert resumed(process) == ["told: committed", "again: committed"]
        until(lambda: site.command("scan").returncode == ExitCode.OK)
        assert "Nothing is in doubt" in site.command("list").stdout
    mariadb.empty()
