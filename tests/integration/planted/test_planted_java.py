"""The same over Java's drivers: PostgreSQL by its log of every statement, H2 and Derby by functions of a user's.

H2 and Derby look at their own functions first, and operators cannot be made there. A planted one would fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.planted.site import ANY, CRASHES, PlantedSite, unqualified
from tests.support import preloaded
from tests.support.jdbc_places import DERBY_OPTIONS, JdbcPlaces
from tests.support.repository import ROOT
from tests.support.server_log import LoggedPostgres
from tests.support.strangers import Strangers

if TYPE_CHECKING:
    from tests.conftest import Require
    from tests.support.jdbc import Jars

pytestmark = pytest.mark.slow

#: What txpool's statements for H2 and Derby name as functions, and what is usual beside it.
_NAMES = ("transaction_id", "current_user", "max", "count", "coalesce", "lower", "upper", "current_timestamp", "cast")
_PLANTS = {
    "h2": 'create alias {} for "java.lang.Integer.parseInt(java.lang.String)"',
    "derby": "create function {}() returns integer language java parameter style java no sql "
    "external name 'java.lang.Integer.parseInt'",
}
_WORK = """
import sys
import txpool
from txpool import failpoints

txpool.configure("txpool.properties")
plants, planted = sys.argv[1:], []
first = txpool.connect("xa.properties")
for statement in ("create table t (n integer)", *plants):
    try:
        first.cursor().execute(statement)
        first.commit()
        planted.append(statement.split()[2])
    except txpool.Error:
        first.rollback()
first.close()
for names in (["xa"], ["marked"], ["xa", "other"]):
    for _ in range(2):
        with txpool.transaction():
            for name in names:
                txpool.connect(name + ".properties").cursor().execute("insert into t values (1)")
connection = txpool.connect("xa.properties")
print(connection.cursor().execute("select n from t").fetchall(), *planted[1:])
connection.close()
"""


@pytest.mark.costly
@pytest.mark.parametrize("kind", _PLANTS)
def test_no_function_in_h2_or_derby_is_called(tmp_path: Path, jdbc_jars: Jars, kind: str) -> None:
    places = JdbcPlaces(tmp_path, jdbc_jars, lambda name: None)
    options = {"jvm.options": DERBY_OPTIONS} if kind == "derby" else {}
    places.file(kind, "xa", "xa", **options)
    places.file(kind, "cmr", "marked", **options | {"cmr.immediate-cleanup": "true"})
    (tmp_path / "other.properties").write_text("driver = sqlite3\nmode = cmr\nurl = sqlite:///other.db\n")
    log = "node.name = etl-1\nlog.url = sqlite:///txlog\nlog.create = true\n"
    (tmp_path / "txpool.properties").write_text(log)
    (tmp_path / "recovery.properties").write_text(
        f"{log}recovery.backoff = 0\ndatasources = marked.properties, other.properties\n"
    )
    environment = {"PYTHONPATH": str(ROOT)}

    def run(*command: str) -> str:
        done = preloaded.run(*command, cwd=tmp_path, env=environment)
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    run("-m", "recovery", "init", "--conf", "recovery.properties")
    run("-c", "import sqlite3; sqlite3.connect('other.db').execute('create table t (n integer)')")
    said = run("-c", _WORK, *(_PLANTS[kind].format(name) for name in _NAMES))
    rows, _, planted = said.rpartition("]")
    assert rows.count("1") >= 4, said
    print(f"{kind} let these be planted:{planted}")
    run("-m", "recovery", "scan", "--conf", "recovery.properties")
    run("-m", "txpool", "check", "marked.properties")
    run("-m", "txpool", "check", "xa.properties")


@pytest.fixture(scope="module")
def postgres(require: Require) -> Iterator[LoggedPostgres]:
    """A server of its own, whose log tells what it has understood."""
    with LoggedPostgres() as server:
        yield server


@pytest.mark.costly
def test_each_name_in_a_statement_for_postgresql_has_its_schema(
    tmp_path: Path, strangers: Strangers, jdbc_jars: Jars
) -> None:
    site = PlantedSite(tmp_path, strangers, fresh=False)
    server = strangers.databases.server
    places = JdbcPlaces(tmp_path, jdbc_jars, lambda name: server)
    options = {"User": "app", "cmr.immediate-cleanup": "true"}
    for name, mode, database in (("java", "xa", "one"), ("java-marked", "cmr", "one")):
        url = f"jdbc:postgresql://127.0.0.1:{server.port}/{database}"
        places.file(
            "postgresql", mode, name, url=url, **{k: v for k, v in options.items() if mode == "cmr" or k == "User"}
        )
    conf = (tmp_path / "recovery.properties").read_text().replace("one.properties, ", "java.properties, ")
    conf = conf.replace("marked.properties", "java-marked.properties").replace("rows.properties, ", "")
    (tmp_path / "recovery.properties").write_text(conf)
    for database in ("one", "two"):  # nobody else recovers here
        lines = (tmp_path / f"{database}.properties").read_text().splitlines()
        kept = [line for line in lines if not line.startswith("recovery.")]
        (tmp_path / f"{database}.properties").write_text("\n".join(kept) + "\n")
    site.watch_only("app")
    log = site.reading()
    site.recovery("init")
    for names in (["java", "two"], ["java-marked", "two"], ["java"], ["java-marked"]):
        site.run("-c", CRASHES, *names)
    for names in (["java", "two"], ["java-marked", "two"]):
        site.run("-c", CRASHES, *names, failpoints="coordinator.prepared=kill", exits=(-9,))
    site.recovery("list", exits=ANY)
    site.recovery("scan", exits=ANY)
    for name in ("java", "java-marked"):
        site.run("-m", "txpool", "check", f"{name}.properties", exits=ANY)
    messages = log.messages()
    assert unqualified(messages) == [], "\n\n".join(unqualified(messages))
    assert strangers.databases.prepared() == []
    assert any("pg_catalog.xid8" in each.text or "pg_prepared_xacts" in each.text for each in messages)
