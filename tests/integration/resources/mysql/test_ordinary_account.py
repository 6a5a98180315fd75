"""An account that may do all in its own database and nothing elsewhere: it is told what that means, and what to do."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from recovery import RecoveryManager
from tests.integration.check.place import checked
from tests.integration.resources.mysql.branches import BranchDatabase
from tests.support.mysql import MySQLServer, mariadb_program
from tests.support.mysql_proxy import Fault
from tests.support.waiting import until
from txpool import DataSource, cli
from txpool.config.settings import DataSourceSettings
from txpool.resources.base import BranchOutcome
from txpool.resources.driver.making import Driver, make_driver
from txpool.resources.jdbc.branches.branch import JdbcBranch
from txpool.resources.marked.branch_rows import BranchRows
from txpool.resources.mysql.branches import xa
from txpool.resources.mysql.session import proof
from txpool.xid import make_gtrid, make_xid, new_incarnation

if TYPE_CHECKING:
    from tests.conftest import Require
    from tests.support.jdbc import Jars

PASSWORD = "hunter2"
VARIABLE = "TXPOOL_TEST_ORDINARY_PASSWORD"
_STATEMENT = re.compile(r"^    (\w.*);$", re.MULTILINE)
COMMITTED, LOST = BranchOutcome.COMMITTED, BranchOutcome.LOST


@pytest.fixture(autouse=True)
def _nobody_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "_told", {})
    monkeypatch.setenv(VARIABLE, PASSWORD)


@pytest.fixture
def account(server: MySQLServer) -> str:
    server.execute(
        f"create user shop@'127.0.0.1' identified by '{PASSWORD}'",
        "grant all on one.* to shop@'127.0.0.1'",
        *([] if server.is_mariadb else ["grant xa_recover_admin on *.* to shop@'127.0.0.1'"]),
    )
    return "'shop'@'127.0.0.1'"


def url_of(server: MySQLServer, port: int = 0) -> str:
    return f"mysql://shop@127.0.0.1:{port or server.port}/one"


def driver_of(world: BranchDatabase, **options: Any) -> Driver:
    port = options.pop("port", 0)
    url = url_of(world.server, port)
    given = {"port": port, "url": url, "password": PASSWORD, **options}
    return world.driver_of(**given)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING and each.name == "txpool"]


def test_the_first_connect_says_it_once_with_what_mends_it(
    world: BranchDatabase, account: str, caplog: pytest.LogCaptureFixture
) -> None:
    driver = driver_of(world)
    for _ in range(3):
        world.raws.append(driver.connect())
    driver_of(world).connect().break_off()  # of the same datasource
    driver_of(world, mode="cmr").connect().break_off()
    (told,) = warnings_in(caplog)
    assert f"datasource one: {account} cannot keep the server's " in told
    assert "command denied to user" in told
    assert "recorded as a heuristic hazard" in told
    assert "xa.evidence = row" in told
    assert PASSWORD not in told
    statements = _STATEMENT.findall(told)
    assert statements[-1] == f"GRANT SELECT, INSERT, DELETE ON txpool.generations TO {account}"
    world.server.execute(*statements)
    proof._told.clear()
    raw = driver_of(world).connect()
    world.raws.append(raw)
    assert raw.identity
    assert raw.generation
    assert len(warnings_in(caplog)) == 1


def test_recovery_says_nothing_and_neither_does_an_account_that_keeps_it(
    world: BranchDatabase, account: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = DataSourceSettings.load(name="one", **world.options(url=url_of(world.server), password=PASSWORD))
    make_driver(settings, recovery=True).connect().break_off()
    world.driver.connect().break_off()
    assert warnings_in(caplog) == []


def test_a_lost_answer_is_a_hazard_until_the_statements_were_executed(
    world: BranchDatabase, account: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert answer_lost(world) is LOST
    world.server.execute("delete from work", *_STATEMENT.findall(warnings_in(caplog)[0]), database="one")
    assert answer_lost(world) is COMMITTED


def answer_lost(world: BranchDatabase, **options: Any) -> BranchOutcome:
    """The outcome of a branch whose COMMIT was executed, and whose answer was lost."""
    proxy = world.proxy()
    branch = world.prepared_branch(driver=driver_of(world, port=proxy.port, **options))
    proxy.fail_at(b"xa commit", Fault.CUT_AFTER)
    branch.start_commit()
    outcome = branch.await_commit()
    assert proxy.failed.is_set()
    assert world.rows() == [1]
    return outcome


PROGRAM = """
import sys
import txpool
txpool.configure(node_name="tests", log_url=sys.argv[1], log_create=True)
with txpool.transaction():
    for path in sys.argv[2:]:
        txpool.connect(path).cursor().execute("insert into work values (1)")
"""


@pytest.mark.parametrize("mended", [False, True])
def test_a_program_that_is_killed_behind_its_commit(mariadb: MySQLServer, tmp_path: Path, *, mended: bool) -> None:
    """Nothing is torn: without the grants that is recorded as a hazard, and with them as committed."""
    mariadb.empty()
    mariadb.execute(
        f"create user shop@'127.0.0.1' identified by '{PASSWORD}'",
        *(f"create table {name}.work (id int primary key) engine=innodb" for name in ("one", "two")),
        *(f"grant all on {name}.* to shop@'127.0.0.1'" for name in ("one", "two")),
    )
    if mended:
        account = "'shop'@'127.0.0.1'"
        mariadb.execute(*proof.identity_statements(account), *proof.generation_statements(account))
    paths = [tmp_path / f"{name}.properties" for name in ("one", "two")]
    for path in paths:
        url = url_of(mariadb).replace("/one", f"/{path.stem}")
        path.write_text(f"driver = pymysql\nurl = {url}\npassword = ${{env:{VARIABLE}}}\n")
        path.chmod(0o600)
    log = f"sqlite:///{tmp_path}/txlog"
    killed = subprocess.run(
        [sys.executable, "-c", PROGRAM, log, *map(str, paths)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"TXPOOL_FAILPOINTS": "branch.commit-sent=kill"},
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert killed.stderr.count("cannot keep the server's identity and generation") == (0 if mended else 2)

    def rows() -> list[tuple[int, ...]]:
        return mariadb.execute("select id from one.work union all select id from two.work")

    until(lambda: len(rows()) == 1)  # the one COMMIT that was sent
    (tmp_path / "recovery.properties").write_text(
        f"node.name = tests\nlog.url = {log}\nrecovery.backoff = 0\ndatasources = one.properties, two.properties\n"
    )
    with closing(RecoveryManager(tmp_path / "recovery.properties")) as manager:
        until(lambda: manager.scan() and not mariadb.prepared())  # its sessions let go of what they have prepared
        states = [branch.state for found in manager.in_doubt() for branch in found.branches]
    assert rows() == [(1,), (1,)]
    assert states == ([] if mended else ["ended lost"])


def test_a_row_of_its_own_shows_it_and_no_warning_is_needed(
    world: BranchDatabase, account: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert BranchRows("one", driver_of(world), "txpool_branches").create()
    caplog.clear()
    proof._told.clear()
    assert answer_lost(world, xa_evidence="row") is COMMITTED
    assert warnings_in(caplog) == []


def test_a_grant_while_a_branch_is_in_doubt_proves_nothing(
    world: BranchDatabase, account: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it was this server that had prepared the branch, nobody has noted."""
    branch = world.prepared_branch(driver=driver_of(world))
    world.kill()
    world.server.execute(xa.named("commit", branch.record.xid), *_STATEMENT.findall(warnings_in(caplog)[0]))
    driver = driver_of(world)
    world.raws.append(driver.connect())
    assert world.raws[-1].generation
    for recovering in (driver, world.driver):
        assert type(world.recovery)(recovering).commit(branch.record) is LOST
    branch.start_commit()
    assert branch.await_commit() is LOST


def test_a_grant_of_the_identity_alone_proves_nothing(
    world: BranchDatabase, account: str, caplog: pytest.LogCaptureFixture
) -> None:
    if not world.server.is_mariadb:
        pytest.skip("MySQL tells its identity to everybody")
    world.server.execute(*proof.identity_statements(account))
    assert answer_lost(world) is LOST
    (told,) = [each for each in warnings_in(caplog) if "cannot keep" in each]
    assert "cannot keep the server's generation in the database txpool" in told
    assert "txpool.server" not in told


def test_a_server_that_is_read_only_needs_no_grant(
    world: BranchDatabase, account: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.server.execute(*proof.identity_statements(account), *proof.generation_statements(account))
    world.server.execute("set global read_only = 1")
    try:
        world.raws.append(driver_of(world).connect())
    finally:
        world.server.execute("set global read_only = 0")
    (told,) = warnings_in(caplog)
    assert "read-only" in told
    assert "GRANT" not in told


# -- why identity and generation are not in the datasource's own database -------------------------------------------


def test_a_dump_of_its_database_restored_elsewhere_proves_nothing(mariadb: MySQLServer, require: Require) -> None:
    """The dump has all rows of that database, and no prepared branch. The other server has the same @@server_id."""
    programs = shutil.which("mariadb-dump"), shutil.which("mariadb"), mariadb_program()
    require(all(programs), "MariaDB: apt-get install mariadb-server")
    dumper, client, server = map(str, programs)
    mariadb.empty()
    with closing(BranchDatabase(mariadb)) as world, MySQLServer(Path(server)) as other:
        branch = world.prepared_branch()
        world.kill()
        dump = _of_a_program(mariadb, dumper, "one")
        _of_a_program(other, client, "one", given=dump)
        driver = world.driver_of(url=other.url("one"), password=other.password)
        assert other.execute("select schema_name from information_schema.schemata where schema_name = 'txpool'") == []
        assert type(world.recovery)(driver).commit(branch.record) is BranchOutcome.UNKNOWN
        assert world.recovery.commit(branch.record) is COMMITTED
        assert world.rows() == [1]


def _of_a_program(server: MySQLServer, *command: str, given: bytes = b"") -> bytes:
    program, *arguments = command
    options = ["--protocol=tcp", "--host=127.0.0.1", f"--port={server.port}", f"--user={server.user}"]
    environment = os.environ | {"MYSQL_PWD": server.password}
    return subprocess.run(
        [program, *options, *arguments], input=given, check=True, capture_output=True, timeout=60, env=environment
    ).stdout


# -- over JDBC ------------------------------------------------------------------------------------------------------


@pytest.fixture
def over_jdbc(mariadb: MySQLServer, jdbc_jars: Jars, tmp_path: Path) -> Iterator[Callable[[], DataSource]]:
    mariadb.empty()
    mariadb.execute(
        "create table work (id int primary key) engine=innodb",
        f"create user shop@'127.0.0.1' identified by '{PASSWORD}'",
        "grant all on one.* to shop@'127.0.0.1'",
        database="one",
    )
    path = tmp_path / "stock.properties"
    path.write_text(
        f"driver = jdbc\nurl = jdbc:mariadb://127.0.0.1:{mariadb.port}/one\nuser = shop\n"
        f"password = ${{env:{VARIABLE}}}\njdbc.classpath = {','.join(jdbc_jars.mariadb)}\n"
    )
    path.chmod(0o600)
    opened: list[DataSource] = []

    def open_it() -> DataSource:
        opened.append(DataSource.from_settings(DataSourceSettings.load(path)))
        return opened[-1]

    yield open_it
    for each in opened:
        each.close()


@pytest.mark.costly
def test_over_jdbc_the_first_connect_says_it_once(
    over_jdbc: Callable[[], DataSource], mariadb: MySQLServer, caplog: pytest.LogCaptureFixture
) -> None:
    source = over_jdbc()
    with closing(source.connect()), closing(over_jdbc().connect()):
        (told,) = warnings_in(caplog)
    assert "datasource stock: 'shop'@'127.0.0.1' cannot keep the server's identity and generation" in told
    assert "xa.evidence" not in told  # there are no rows over JDBC
    answer = checked(Path(source.settings.file))
    assert {"identity", "generation"} <= set(answer.bad)
    mariadb.execute(*_STATEMENT.findall(told))
    assert not {"identity", "generation"} & set(checked(Path(source.settings.file)).bad)
    proof._told.clear()
    over_jdbc().connect().close()
    assert len(warnings_in(caplog)) == 1


def test_over_jdbc_a_grant_while_a_branch_is_in_doubt_proves_nothing(
    over_jdbc: Callable[[], DataSource], mariadb: MySQLServer, caplog: pytest.LogCaptureFixture
) -> None:
    source = over_jdbc()
    driver = source.driver_adapter
    raw = driver.connect()
    branch = JdbcBranch("stock", driver, raw)
    branch.name(make_xid(make_gtrid("tests", new_incarnation(), 1), 0, "stock"))
    driver.begin(raw)
    driver.execute(raw, "insert into work values (1)")
    branch.start_prepare()
    branch.await_prepare()
    mariadb.end_sessions()
    mariadb.execute(xa.named("commit", branch.record.xid), *_STATEMENT.findall(warnings_in(caplog)[0]))
    assert source.branch_recovery().commit(branch.record) is LOST
    driver.close(raw)


# -- the commands ---------------------------------------------------------------------------------------------------


def test_init_prints_the_statements(
    server: MySQLServer, account: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    folder = tmp_path / "conf"
    ended = CliRunner().invoke(cli.app, ["init", str(folder), f"shop={url_of(server)}"])
    assert "For an administrator of the server of datasource shop" in ended.output
    statements = _STATEMENT.findall(ended.output)
    assert statements[-1] == f"GRANT SELECT, INSERT, DELETE ON txpool.generations TO {account}"
    server.execute(*statements)
    assert set(checked(folder / "shop.properties").bad) <= {"accounts"}


def test_check_says_it_of_both_accounts(server: MySQLServer, account: str, tmp_path: Path) -> None:
    server.execute(
        f"create user mender@'127.0.0.1' identified by '{PASSWORD}'",
        "grant select on one.* to mender@'127.0.0.1'",
        *([] if server.is_mariadb else ["grant xa_recover_admin on *.* to mender@'127.0.0.1'"]),
    )
    path = tmp_path / "shop.properties"
    path.write_text(
        f"driver = pymysql\nurl = {url_of(server)}\npassword = ${{env:{VARIABLE}}}\nrecovery.user = mender\n"
        f"recovery.password = ${{env:{VARIABLE}}}\n"
    )
    path.chmod(0o600)
    found = checked(path).about("generation", "warning")
    assert [each["found"].partition(" in ")[0] for each in found] == [
        "mender@127.0.0.1 cannot read the server's generation",
        "shop@127.0.0.1 cannot keep the server's generation",
    ]
    for each in checked(path).about("identity", "warning") + found:
        server.execute(*re.findall(r"(?:create|insert|grant)\b[^;]*", each["do"], re.IGNORECASE))
    assert set(checked(path).bad) <= {"accounts"}
    path.write_text(path.read_text() + "xa.evidence = row\n")
    server.execute("drop table txpool.generations")
    assert checked(path).about("generation") == []
