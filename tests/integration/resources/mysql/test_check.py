"""What `txpool check` finds in MariaDB and MySQL, and that its advice heals what it has found."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.check.place import CheckResult, checked
from tests.support.mysql import MySQLServer, mariadb_program
from txpool import DataSource
from txpool.errors import ConfigurationError
from txpool.resources.mysql.session.server import CREATE_IDENTITY

if TYPE_CHECKING:
    from tests.conftest import PythonWithout, Require
    from tests.support.mysql import RequireDriver

PASSWORD = "TXPOOL_TEST_MYSQL_PASSWORD"  # the name of a variable
_SQL = re.compile(r"\b(?:GRANT|CREATE|SET GLOBAL|INSERT|ALTER)\b[^;]*", re.IGNORECASE)


class Checked:
    """A datasource's file for a user with few rights, and the command's answer."""

    def __init__(self, server: MySQLServer, folder: Path) -> None:
        self.server = server
        self.path = folder / "orders.properties"
        server.execute(
            "create user app@'127.0.0.1' identified by 'app'",
            "grant select, insert, update, delete, create, drop on one.* to app@'127.0.0.1'",
        )
        self.write()

    def write(self, more: str = "", *, mode: str = "xa", database: str = "one", user: str = "app") -> None:
        url = f"mysql://{user}@127.0.0.1:{self.server.port}/{database}"
        text = f"driver = pymysql\nmode = {mode}\nurl = {url}\npassword = ${{env:{PASSWORD}}}\n{more}\n"
        self.path.write_text(text)
        self.path.chmod(0o600)

    def check(self) -> CheckResult:
        return checked(self.path)

    def heal(self, topic: str) -> None:
        """Execute the SQL of the advice about a topic, to the letter."""
        (finding,) = [each for each in self.check().about(topic) if each["severity"] != "ok"]
        statements = _SQL.findall(finding["do"].replace("; and write it into the server's file", ";"))
        assert statements, finding
        self.server.execute(*statements)


@pytest.fixture
def place(server: MySQLServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Checked]:
    monkeypatch.setenv(PASSWORD, "app")
    yield Checked(server, tmp_path)
    server.start()
    server.execute("set global innodb_flush_log_at_trx_commit = 1", "set global read_only = 0")


def test_each_privilege_is_named_with_its_grant(place: Checked) -> None:
    if place.server.is_mariadb:
        assert "identity" in place.check().bad
        place.heal("identity")
    else:
        assert "privileges" in place.check().bad
        place.heal("privileges")
    assert "generation" in place.check().bad
    place.heal("generation")
    answer = place.check()
    assert set(answer.bad) <= {"accounts"}, answer
    with DataSource.from_properties(place.path) as source:
        assert source.prepare_location().identity
    assert place.server.execute("select count(*) from txpool.generations") == [(1,)]


def test_a_database_that_the_account_may_not_use(place: Checked) -> None:
    place.server.execute("create database `my_%orders`", "create database `myxorders`")
    place.server.execute("create user clerk@'127.0.0.1' identified by 'app'")
    place.write(mode="local", database="my_%25orders", user="clerk")
    assert place.check().bad == ["connection"]
    place.heal("connection")
    assert place.check().bad == []
    place.write(mode="local", database="myxorders", user="clerk")  # the names in a GRANT are patterns
    assert place.check().bad == ["connection"]


def test_other_accounts_are_warned_of(place: Checked) -> None:
    place.server.execute("create user somebody identified by 'x'", "grant select on mysql.* to app@'127.0.0.1'")
    (finding,) = place.check().about("accounts")
    assert finding["severity"] == "warning"
    assert "somebody" in finding["found"]
    assert "does not show who has prepared" in finding["why"]


def test_tables_without_transactions(place: Checked) -> None:
    place.server.execute("create table m (id int) engine = myisam", database="one")
    (finding,) = place.check().about("engine")
    assert (finding["severity"], finding["found"]) == ("wrong", "tables without transactions: m (MyISAM)")


@pytest.mark.parametrize("setting", [0, 2])
def test_settings_that_lose_commits(place: Checked, setting: int) -> None:
    place.server.execute(f"set global innodb_flush_log_at_trx_commit = {setting}")
    (finding,) = place.check().about("durability")
    assert f"innodb_flush_log_at_trx_commit is {setting}" in finding["found"]
    place.heal("durability")
    assert place.check().about("durability") == []


def test_a_server_that_is_read_only(place: Checked) -> None:
    place.server.execute("set global read_only = 1")
    assert "read-only" in place.check().bad


def test_a_marked_datasource(place: Checked) -> None:
    place.write(mode="cmr")
    (finding,) = place.check().about("table")
    assert "there is no table xids" in finding["found"]
    with DataSource.from_properties(place.path) as source:
        source.xids_table().create()  # type: ignore[attr-defined]
    assert place.check().about("table") == []
    assert place.check().about("marks")
    place.server.execute("alter table xids drop primary key", database="one")
    (finding,) = place.check().about("table")
    place.server.execute(finding["do"].rstrip(";"), database="one")
    assert place.check().about("table") == []


@pytest.mark.parametrize("wrong", ["password", "database", "server"])
def test_what_cannot_be_reached(place: Checked, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    if wrong == "password":
        monkeypatch.setenv(PASSWORD, "not the password")
    elif wrong == "database":
        place.write(database="nowhere")
    else:
        place.server.stop()
    try:
        answer = place.check()
    finally:
        place.server.start()
    (finding,) = answer.about("connection")
    assert finding["severity"] == "wrong"
    assert "not the password" not in str(answer)


@pytest.mark.parametrize("option", ["autocommit = true", "connect_timeout = soon", "db = x", "local_infile = maybe"])
def test_driver_options_that_cannot_be(place: Checked, option: str) -> None:
    place.write(f"driver.{option}")
    with DataSource.from_properties(place.path) as source, pytest.raises(ConfigurationError, match=r"driver\."):
        source.connect()


def test_options_of_a_file_have_their_types(place: Checked) -> None:
    place.write("driver.connect_timeout = 5\ndriver.read_timeout = 30\ndriver.local_infile = false", mode="local")
    with DataSource.from_properties(place.path) as source, source.connect() as connection:
        cursor = connection.cursor()
        cursor.execute("select 1")


def test_a_driver_that_is_not_installed_names_the_extra(python_without: PythonWithout) -> None:
    source = """
import txpool
try:
    txpool.DataSource(name="x", driver="pymysql", mode="xa", url="mysql://a@localhost/b")
except txpool.ConfigurationError as error:
    raise SystemExit(str(error))
"""
    assert "pip install 'txpool[mariadb]'" in python_without("pymysql", source)


#: As a program does for Django, which takes no other module.
_STANDS_FOR = """
import pymysql, txpool
pymysql.install_as_MySQLdb()
try:
    txpool.DataSource(name="x", driver="mysqlclient", mode="xa", url="mysql://a@localhost/b")
except txpool.ConfigurationError as error:
    raise SystemExit(str(error))
"""


def test_a_driver_that_another_stands_for_names_the_extra(python_without: PythonWithout) -> None:
    said = python_without("MySQLdb", _STANDS_FOR)
    assert said == (
        "datasource x: driver mysqlclient needs MySQLdb, which is not installed: pip install 'txpool[mysqlclient]'\n"
    )


def test_a_driver_that_is_installed_and_another_stands_for(require_driver: RequireDriver) -> None:
    require_driver("mysqlclient")
    done = subprocess.run([sys.executable, "-c", _STANDS_FOR], capture_output=True, text=True, check=False)
    assert done.stderr == (
        "driver = mysqlclient needs MySQLdb, and in this process pymysql has that name: leave out "
        "install_as_MySQLdb(), or write driver = pymysql\n"
    )


def test_a_recovery_account_that_cannot_clean_up_after_spark(place: Checked) -> None:
    place.server.execute(
        "create user mender@'127.0.0.1' identified by 'app'", "grant select on one.* to mender@'127.0.0.1'"
    )
    if not place.server.is_mariadb:
        place.server.execute("grant xa_recover_admin on *.* to mender@'127.0.0.1', app@'127.0.0.1'")
    place.write(f"recovery.user = mender\nrecovery.password = ${{env:{PASSWORD}}}")
    assert place.check().about("spark") == [], "Spark has never written here"
    registers = ("txpool_spark_staging", "txpool_spark_created")
    place.server.execute(*(f"create table {name} (id int)" for name in registers), database="one")
    (found,) = place.check().about("spark")
    assert found["severity"] == "warning"
    assert all(name in found["found"] for name in registers)
    place.heal("spark")
    assert place.check().about("spark") == []


# -- servers that no branch can be trusted to -----------------------------------------------------------------------


def test_galera_is_refused(require: Require, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = mariadb_program()
    require(program, "MariaDB: apt-get install mariadb-server")
    assert program is not None
    monkeypatch.setenv(PASSWORD, "app")
    with MySQLServer(program, settings=["--wsrep-on=ON", "--wsrep-provider=none", "--binlog-format=row"]) as server:
        place = Checked(server, tmp_path)
        assert any("Galera" in finding["found"] for finding in place.check().about("xa"))
        with DataSource.from_properties(place.path) as source, pytest.raises(ConfigurationError, match="Galera"):
            source.connect()
        # It is in no cluster, and without its number would be taken for its replica.
        server.execute(
            *CREATE_IDENTITY,
            "insert into txpool.server values (1, 'one')",
            "grant select on txpool.* to app@'127.0.0.1'",
        )
        place.write(mode="cmr")
        with DataSource.from_properties(place.path) as source:
            raw = source.driver_adapter.connect()
            assert (raw.identity,) == server.execute("select concat('one/', @@server_id)")[0]
            source.driver_adapter.close(raw)
        place.write(mode="local")
        assert place.check().about("xa") == []


@pytest.mark.costly
def test_mysql_with_a_binary_log_is_refused_before_8_0_30(
    mysql8: MySQLServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed within a second of PREPARE's answer, that server has lost the branch."""
    monkeypatch.setenv(PASSWORD, "app")
    with MySQLServer(mysql8.program, settings=["--log-bin"]) as server:
        place = Checked(server, tmp_path)
        assert any("log_bin" in finding["found"] for finding in place.check().about("xa"))
        with DataSource.from_properties(place.path) as source, pytest.raises(ConfigurationError, match="log_bin"):
            source.connect()
        server.execute("set global sync_binlog = 0")
        assert any("sync_binlog is 0" in finding["found"] for finding in place.check().about("durability"))
