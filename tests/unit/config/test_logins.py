"""Logins: what the log notes of a datasource made in code, and what recovery's file allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from txpool.config.logins import read_note
from txpool.config.properties import Properties
from txpool.config.settings import DataSourceSettings, RecoverySettings
from txpool.config.settings.login import login_of
from txpool.errors import ConfigurationError

NOTED = "postgresql://app:${env:ORDERS_PASSWORD}@db1.example:5432/orders"


def allowing(text: str, folder: Path | None = None) -> tuple[Any, ...]:
    file = Properties.parse(f"recovery.noted = {text}\n", folder=folder)
    return RecoverySettings.load(file, node_name="etl-1", log_url="memory:").recovery_noted


def noted(*, user: str = "app", host: str = "db1.example", database: str = "orders", **options: Any) -> str:
    options = {"url": "postgresql://app@db1.example/orders"} | options
    settings = DataSourceSettings.load(name="orders", driver="psycopg", **options)
    return login_of(settings, "postgresql://", user=user, host=host, port=5432, database=database)


def test_a_password_is_noted_only_by_its_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_PASSWORD", "hunter2")
    monkeypatch.setenv("HOST", "db1.example")
    assert noted(password="${env:ORDERS_PASSWORD}") == NOTED
    assert noted(url="postgresql://app:${env:ORDERS_PASSWORD}@db1.example/orders") == NOTED
    assert noted(url="postgresql://app:${env:ORDERS_PASSWORD}@${env:HOST}/orders") == NOTED
    secret = Path.cwd() / "secret"
    assert noted(password="${file:secret}") == NOTED.replace("${env:ORDERS_PASSWORD}", f"${{file:{secret}}}")
    without = "postgresql://app@db1.example:5432/orders"
    for mixed in ("hunter2", "${env:ORDERS_PASSWORD}2", "$${env:ORDERS_PASSWORD}"):
        assert noted(password=mixed) == without
    assert noted() == noted(credentials=lambda: "hunter2") == without
    monkeypatch.setenv("TXPOOL_DS_ORDERS_PASSWORD", "hunter2")
    assert noted() == NOTED.replace("ORDERS_PASSWORD", "TXPOOL_DS_ORDERS_PASSWORD")


def test_what_supplies_the_credentials_is_noted_by_its_name() -> None:
    by = "postgresql://app@db1.example:5432/orders by vault.tokens:orders"
    assert noted(credentials="vault.tokens:orders") == by
    assert noted(credentials="vault.tokens:orders", user="") == by.replace("app@", "")


def test_what_could_not_be_followed_is_not_noted(tmp_path: Path) -> None:
    (tmp_path / "orders.properties").write_text("driver = psycopg\nurl = postgresql://app@db1.example/orders\n")
    of_a_file = DataSourceSettings.load(tmp_path / "orders.properties")
    assert not login_of(of_a_file, "postgresql://", user="app", host="db1.example", port=5432, database="orders")
    assert noted(database="a=b") == noted(database="x/y") == noted(user="") == noted(host="") == ""
    rows = noted(xa_evidence="row")
    assert rows.endswith(":5432/orders with rows"), rows
    assert read_note(rows) is not None
    assert noted(xa_evidence="row", xa_evidence_table="theirs") == "", "a note names no table"
    assert noted(mode="cmr") == rows.removesuffix(" with rows")
    assert noted(mode="cmr", cmr_table="theirs") == "", "a note names no table"


@pytest.mark.parametrize("host", ["DB1.example", "::1", "/var/run/postgresql", "/tmp/Sockets"])
def test_a_note_is_read_as_it_was_written(host: str) -> None:
    text = noted(host=host, user="a:b@c", password="${env:X}")
    login = read_note(text)
    assert login is not None
    assert login.user == "a:b@c"
    assert login.hosts == ((host if host.startswith("/") else host.lower(), "5432"),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "postgresql://app:hunter2@db1:5432/orders",
        "postgresql://app@db1/orders",
        "postgresql://app@db1:5432,db2:5432/orders",
        "postgresql://app@db1:5432/orders?sslmode=disable",
        "postgresql://app@db1:5432/orders with theirs",
        "postgresql://app@db1:5432/orders  with rows",
        "postgresql://app@db1:5432/orders with rows by os:system",
        "postgresql://app@db1:5432/host%3Devil",
        "postgresql://app@db1:5432/..",
        "postgresql://app:${env:X}${env:Y}@db1:5432/orders",
        "postgresql://app:${file:secret}@db1:5432/orders",
        "postgresql://app:${file:/a/../b}@db1:5432/orders",
        "postgresql://app:${file:/a\x1b[2J}@db1:5432/orders",
        "postgresql://app:${file:/a\u202e}@db1:5432/orders",
        "postgresql://app:${http:x}@db1:5432/orders",
        "postgresql://app:${env:X}@db1:5432/orders by os:system",
        "postgresql://app@db1:5432/orders  by os:system",
        "postgres://app@db1:5432/orders",
        "oracle://app@db1:5432/orders",
        "sqlite:///orders.db",
    ],
)
def test_a_note_that_txpool_does_not_write_is_none(text: str) -> None:
    assert read_note(text) is None


def test_the_file_allows_what_it_says_and_nothing_else() -> None:
    (one,) = allowing(NOTED)
    login = read_note(NOTED)
    assert login is not None
    assert one.allows(login)
    for changed in (
        NOTED.replace("app:", "root:"),
        NOTED.replace("db1", "db2"),
        NOTED.replace("5432", "5433"),
        NOTED.replace("/orders", "/billing"),
        NOTED.replace("ORDERS", "BILLING"),
        NOTED.replace("env:ORDERS_PASSWORD", "file:/etc/passwd"),
        "postgresql://app@db1.example:5432/orders by os:getcwd",
        NOTED.replace("postgresql", "mysql"),
    ):
        other = read_note(changed)
        assert other is not None
        assert not one.allows(other), changed
    by_the_files_own = read_note(NOTED.replace(":${env:ORDERS_PASSWORD}", ""))
    assert by_the_files_own is not None
    assert one.allows(by_the_files_own)


def test_several_hosts_any_database_and_parameters() -> None:
    one, two, three = allowing(
        "postgresql://app:${env:A}@db1:5432,DB2:5432/*?sslmode=verify-full&target_session_attrs=read-write , "
        "mariadb://u:${file:my secret, really}@[::1]:3306/*,postgresql://db3:5432/x by a.b:c",
        Path("/etc/txpool"),
    )
    for host, database in (("db1", "orders"), ("db2", "billing")):
        login = read_note(f"postgresql://app:${{env:A}}@{host}:5432/{database}")
        assert login is not None
        assert one.allows(login)
    assert (one.address, one.parameters["sslmode"]) == ("postgresql://app@db1:5432,DB2:5432/", "verify-full")
    assert two.login.reference == "${file:/etc/txpool/my secret, really}"
    mysql = read_note("mysql://u@[::1]:3306/")
    assert mysql is not None
    assert two.allows(mysql)
    assert (three.login.function, three.password) == ("a.b:c", None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("postgresql://app:hunter2@db1:5432/x", "number 1, which has a password in it"),
        ("postgresql://app@db1:5432/x, mysql://app:hunter2@db1:3306/x", "number 2, which has a password in it"),
        ("postgresql://app:hunter2${env:X}@db1:5432/x", "a password in it, or a reference in another place"),
        ("postgresql://${env:X}@db1:5432/x", "a reference in another place"),
        ("postgresql://app@db1/x", "names no host with its port"),
        ("postgresql://db1:5432/x", "names no user"),
        ("postgresql://app@db1:5432", "names no database"),
        ("postgresql://app@db1:5432/x?host=db2", "repeats a part of the url"),
        ("postgresql://app@db1:5432/x?hunter2=y", "does not know"),
        ("postgresql://app:${env:X}@db1:5432/x by a:b", "leave one out"),
        ("*", "can be read in more than one way"),
        ("db1 db2", "is none"),
    ],
)
def test_a_wrong_login_is_an_error_that_shows_no_password(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        allowing(text)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_list_of_references_holds_no_password_itself(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Two urls read as one, from the first colon to the last @."""
    file = tmp_path / "recovery.properties"
    for text, inline in (
        (f"{NOTED}, mysql://u:${{env:X}}@db2:3306/*, postgresql://db3:5432/x by a.b:c", False),
        (f"{NOTED}, mysql://u:hunter2@db2:3306/*", True),
    ):
        file.write_text(f"recovery.noted = {text}\n")
        file.chmod(0o644)
        assert bool(Properties.load(file).inline) is inline
        assert bool(recwarn.list) is inline


def test_the_password_is_the_files_own_and_its_error_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "recovery.properties").write_text("\nrecovery.noted = postgresql://app:${env:NOT_SET}@db1:5432/*\n")
    settings = RecoverySettings.load(tmp_path / "recovery.properties", node_name="etl-1", log_url="memory:")
    password = settings.recovery_noted[0].password
    assert password is not None
    with pytest.raises(ConfigurationError, match=r"recovery\.properties:2: recovery\.noted: password needs .* NOT_SET"):
        password.reveal()
