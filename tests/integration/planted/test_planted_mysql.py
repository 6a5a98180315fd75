"""What a stranger plants in the current database of MariaDB or MySQL is called by no statement of txpool's.

There operators cannot be made, and a function of the server's own comes before a stored one of the same name, unless a
space stands between name and parenthesis. So each name that txpool's statements call, by the server's own log of them,
is planted as a stored function. And no mode of `sql_mode` that changes what a statement means changes one of txpool's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pymysql
import pytest

from tests.support import preloaded
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from tests.support.mysql import MySQLServer

pytestmark = pytest.mark.slow

_PASSWORD = "TXPOOL_TEST_PLANTED_MYSQL"  # the name of a variable
_DATASOURCES = {"xa": "", "marked": "mode = cmr\ncmr.batch-size = 2", "rows": "xa.evidence = row", "other": ""}
_MODES = {
    "by default": "",
    "what changes quotes and operators": "ANSI_QUOTES,PIPES_AS_CONCAT,IGNORE_SPACE,NO_BACKSLASH_ESCAPES,"
    "HIGH_NOT_PRECEDENCE",
}
_WORK = """
import sys
import txpool

txpool.configure("txpool.properties")


def write(*names):
    for name in names:
        connection = txpool.connect(name + ".properties")
        connection.cursor().execute("insert into t values (1)")
        connection.close()


if sys.argv[1:]:
    with txpool.transaction():
        write(*sys.argv[1:])
    raise SystemExit
for names in (["xa"], ["marked"], ["rows"], ["xa", "other"], ["xa", "rows"], ["xa", "marked"]):
    for _ in range(3):
        with txpool.transaction():
            write(*names)
for name in ("xa", "marked"):
    for _ in range(2):
        try:
            with txpool.transaction(transaction_id="nightly", record_in=name + ".properties"):
                write(name)
        except txpool.AlreadyDone:
            pass
"""


class Site:
    """An application and recovery in the databases of a server, with the log there as well."""

    def __init__(self, folder: Path, server: MySQLServer) -> None:
        self.folder, self.server = folder, server
        self._environment = {"PYTHONPATH": str(ROOT), _PASSWORD: server.password, "COLUMNS": "250"}
        secret = f"password = ${{env:{_PASSWORD}}}"
        for name, more in _DATASOURCES.items():
            url = server.url("two" if name == "other" else "one")
            self._write(name, f"name = {name}\ndriver = pymysql\nurl = {url}\n{secret}\n{more}")
        log = f"node.name = etl-1\nlog.url = {server.url('two')}\nlog.{secret}"
        self._write("txpool", log)
        files = ", ".join(f"{name}.properties" for name in _DATASOURCES)
        self._write("recovery", f"{log}\nrecovery.backoff = 0\ndatasources = {files}")

    def _write(self, name: str, text: str) -> None:
        (self.folder / f"{name}.properties").write_text(text + "\n")

    def run(self, *command: str, failpoints: str = "", exits: range = range(1)) -> str:
        done = preloaded.run(*command, cwd=self.folder, env=self._environment | {"TXPOOL_FAILPOINTS": failpoints})
        assert done.returncode in exits, f"{command}\n{done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    def everything(self) -> None:
        self.run("-m", "recovery", "init", "--conf", "recovery.properties")
        self.run("-c", _WORK)
        for point in ("coordinator.prepared=kill", "branch.commit-sent=kill"):
            for names in (["xa", "other"], ["xa", "rows"], ["xa", "marked"]):
                self.run("-c", _WORK, *names, failpoints=point, exits=range(-9, -8))
        listed = self.run("-m", "recovery", "list", "--json", "--conf", "recovery.properties", exits=range(40))
        for gtrid in dict.fromkeys(re.findall(r'"gtrid": "([^"]+)"', listed)):
            self.run("-m", "recovery", "rollback", gtrid, "--yes", "--conf", "recovery.properties", exits=range(40))
        self.run("-m", "recovery", "scan", "--conf", "recovery.properties", exits=range(40))
        for name in (*_DATASOURCES, "txpool"):
            self.run("-m", "txpool", "check", f"{name}.properties", exits=range(40))
        assert self.server.prepared() == []


@pytest.fixture
def server(mariadb: MySQLServer) -> Iterator[MySQLServer]:
    mariadb.empty()
    for database in ("one", "two"):
        mariadb.execute("create table t (n integer) engine = innodb", database=database)
    yield mariadb
    mariadb.execute("set global general_log = off", "set global log_output = 'FILE'", "set global sql_mode = default")


@pytest.mark.costly
@pytest.mark.parametrize("mode", _MODES)
def test_no_stored_function_is_called(tmp_path: Path, server: MySQLServer, mode: str) -> None:
    if _MODES[mode]:
        server.execute(f"set global sql_mode = concat(@@sql_mode, ',', '{_MODES[mode]}')")
    server.execute("truncate mysql.general_log", "set global log_output = 'TABLE'", "set global general_log = on")
    (tmp_path / "first").mkdir()
    Site(tmp_path / "first", server).everything()
    server.execute("set global general_log = off")
    texts = [
        str(text if isinstance(text, str) else bytes(text).decode())
        for (text,) in server.execute("select argument from mysql.general_log where command_type = 'Query'")
    ]
    names = sorted({name.lower() for text in texts for name in re.findall(r"\b([A-Za-z_]\w*)\(", text)})
    assert not [text for text in texts if re.search(rf"\b({'|'.join(names)})\s+\(", text) and "select" in text[:6]]
    planted = plant(server, names)
    assert len(planted) > 5
    print(f"{len(set(texts))} statements name {len(names)} functions and the like; planted: {', '.join(planted)}")
    (tmp_path / "second").mkdir()
    Site(tmp_path / "second", server).everything()
    for database in ("one", "two"):
        assert server.execute("select * from called", database=database) == []


def plant(server: MySQLServer, names: list[str]) -> list[str]:
    """Stored functions of these names that tell who has called them; the names that can be one's."""
    found = []
    for database in ("one", "two"):
        # A table that no rollback undoes.
        server.execute("create table called (name varchar(64)) engine = myisam", database=database)
        for name in names:
            body = f"begin insert into called values ('{name}'); return 1; end"
            try:
                server.execute(
                    f"create function `{name}` () returns integer modifies sql data {body}", database=database
                )
            except pymysql.Error:
                continue
            found.append(name)
    return sorted(set(found))
