"""The kit changes nothing of others, and refuses where it lacks rights or would take what others need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, LiteralString

import psycopg
import pytest

from txpool.config.secrets import Secret
from txpool.config.settings import DataSourceSettings
from txpool.conformance.kit import CASES, run_cases

if TYPE_CHECKING:
    from tests.conftest import Databases
    from tests.integration.conformance.conftest import SettingsOf

EVERYTHING: tuple[LiteralString, ...] = (
    "select relname::text, relkind::text, relacl::text from pg_class where relnamespace > 16000 or relnamespace = "
    "'public'::regnamespace order by 1, 2",
    "select gid, owner::text from pg_prepared_xacts order by 1",
    "select nspname::text from pg_namespace order by 1",
    "select rolname::text from pg_roles order by 1",
)
THEIRS: tuple[LiteralString, ...] = (
    "create table txpool_conformance (id int primary key)",
    "insert into txpool_conformance values (1)",
    "create table xids (xid varchar(64) primary key, transaction_manager_id varchar(64) not null, action_uid "
    "varchar(64) not null, kind varchar(6) not null, branches text not null, confirmed int default 0, made_at "
    "timestamptz default now())",
    "insert into xids values ('txp1:mine:abcdefghijkl:1', 'mine', 'abcdefghijkl', 'commit', '[]')",
    "insert into xids values ('txp1:txpool-conformance:abcdefghijkl:1', 'other', 'abcdefghijkl', 'abort', '[]')",
)
#: Prepared by others: another product, a node that lives, another run of the kit.
GIDS = ("other-1", "txp1:mine:abcdefghijkl:2:0:orders:L", "txp1:txpool-conformance:abcdefghijkl:3:0:orders:L")


@pytest.fixture
def shared(databases: Databases) -> Databases:
    """A database in which others work."""
    for statement in THEIRS:
        databases.execute("one", statement)
    for number, gid in enumerate(GIDS):
        with psycopg.connect(databases.dsn("one")) as connection:
            connection.execute("insert into txpool_conformance values (%s)", [number + 10])
            connection.execute(f"prepare transaction '{gid}'".encode())
    return databases


def state(databases: Databases) -> list[object]:
    tables: tuple[LiteralString, ...] = (
        "select * from txpool_conformance",
        "select xid, kind, confirmed from xids order by 1",
    )
    return [databases.rows("one", query) for query in (*EVERYTHING, *tables)]


@pytest.mark.costly
@pytest.mark.parametrize("mode", ["xa", "cmr", "local"])
def test_nothing_of_others_changes_and_nothing_is_left(mode: str, shared: Databases, settings_of: SettingsOf) -> None:
    before = state(shared)
    found = run_cases(settings_of(mode))
    assert found.passed, found
    assert state(shared) == before
    assert (GIDS[2] in found.note) is (mode == "xa")
    assert not any(gid in found.note for gid in GIDS[:2])


def test_an_interrupt_leaves_nothing(shared: Databases, settings_of: SettingsOf) -> None:
    before = state(shared)

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cases(settings_of("xa"), when_ended=interrupt)
    assert state(shared) == before


def test_who_may_create_no_table_is_told_so(databases: Databases) -> None:
    password = databases.server.password
    with psycopg.connect(databases.dsn("one"), autocommit=True) as connection:
        connection.execute("drop role if exists kit_reader")
        connection.execute(f"create role kit_reader login password '{password}'".encode())
        connection.execute("grant usage on schema public to kit_reader")
    try:
        url = databases.url("one").replace("txpool@", "kit_reader@")
        settings = DataSourceSettings.load(name="orders", driver="psycopg", url=url, password=Secret(password))
        found = run_cases(settings)
        assert "could not create it" in found.trouble
        assert "permission denied" in found.trouble
        assert "Nothing else was done" in found.trouble
        assert (found.results, found.left, found.passed) == ((), (), False)
        assert password not in repr(found)
    finally:
        databases.execute("one", "drop owned by kit_reader; drop role kit_reader")


def test_the_last_prepared_slots_are_left_to_others(databases: Databases, settings_of: SettingsOf) -> None:
    (maximum,) = databases.rows("one", "select current_setting('max_prepared_transactions')::int")[0]
    for number in range(maximum - 4):
        with psycopg.connect(databases.dsn("two")) as connection:
            connection.execute("select 1")
            connection.execute(f"prepare transaction 'theirs-{number}'".encode())
    found = run_cases(settings_of("xa"))
    assert "would take them from others" in found.trouble
    assert found.results == ()
    assert run_cases(settings_of("cmr"), cases=CASES[:1]).passed


def test_no_database_is_created(tmp_path: Path) -> None:
    path = tmp_path / "typo.db"
    found = run_cases(DataSourceSettings.load(name="t", driver="sqlite3", mode="cmr", url=f"sqlite:///{path}"))
    assert "does not exist" in found.trouble
    assert found.unreachable
    assert not path.exists()


SUITE = {
    "conftest.py": """
import os, pytest, txpool
pytest_plugins = ["txpool.conformance.plugin"]

@pytest.fixture
def conformance_datasource():
    return os.environ["KIT_FILE"]
""",
    "test_mine.py": "def test_conformance(conformance):\n    conformance()\n",
}


@pytest.mark.costly
def test_the_pytest_plugin(databases: Databases, tmp_path: Path) -> None:
    for name, text in SUITE.items():
        (tmp_path / name).write_text(text)
    file = tmp_path / "orders.properties"
    file.write_text(f"driver = psycopg\nurl = {databases.url('one')}\npassword = ${{env:KIT_PASSWORD}}\n")
    environment = os.environ | {"KIT_FILE": str(file), "KIT_PASSWORD": databases.server.password}
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "15 passed, 2 skipped" in done.stdout
    assert "no server was given that may be killed" in done.stdout
    file.write_text(file.read_text().replace("/one", "/nowhere"))
    done = subprocess.run([*command, "-k", "listing"], check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "could not be connected to" in done.stdout
    assert databases.server.password not in done.stdout
