"""Settings of a datasource: precedence, names, and what is refused in which words; the reference of all keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config.settings_files import LEDGER, ORDERS, refused, write
from txpool.config.keys import COORDINATOR_KEYS, DATASOURCE_KEYS, RECOVERY_KEYS, reference
from txpool.config.settings import DataSourceSettings
from txpool.errors import ConfigurationError
from txpool.resource_managers import BUILT_IN

pytestmark = pytest.mark.usefixtures("own_environment")


def test_defaults_are_typed() -> None:
    settings = DataSourceSettings.load(write("conf/orders.properties", ORDERS))
    assert (settings.name, settings.driver, settings.mode) == ("orders", "psycopg", "xa")
    assert (settings.user, settings.password, settings.recovery_user, settings.recovery_password) == (None,) * 4
    assert (settings.pool_min_size, settings.pool_max_size, settings.pool_max_wait) == (0, 10, 30.0)
    assert (settings.pool_idle_timeout, settings.pool_max_lifetime) == (600.0, 1800.0)
    assert (settings.pool_check_bypass, settings.pool_leak_threshold) == (0.5, None)
    assert settings.managed_commit == "refuse"
    assert (settings.cmr_table, settings.cmr_immediate_cleanup, settings.cmr_batch_size) == ("xids", False, 100)
    assert settings.driver_options == {}


def test_code_wins_over_environment_over_file(monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("conf/orders.properties", ORDERS + "pool.max-size = 1\npool.max-wait = 1\ncmr.batch-size = 1\n")
    monkeypatch.setenv("TXPOOL_DS_ORDERS_POOL_MAX_SIZE", "2")
    monkeypatch.setenv("TXPOOL_DS_ORDERS_POOL_MAX_WAIT", "2m")
    monkeypatch.setenv("TXPOOL_DS_ORDERS_DRIVER_CONNECT_TIMEOUT", "7")
    settings = DataSourceSettings.load(file, pool_max_size=3, cmr_immediate_cleanup=True, user=None)
    assert (settings.pool_max_size, settings.pool_max_wait, settings.cmr_batch_size) == (3, 120.0, 1)
    assert settings.cmr_immediate_cleanup is True
    assert settings.driver_options == {"connect_timeout": 7}


def test_a_name_in_capitals_finds_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXPOOL_DS_MY_ORDERS_2_URL", "postgresql://h/elsewhere")
    settings = DataSourceSettings.load(name="my-orders.2", driver="psycopg", mode="local")
    assert settings.url == "postgresql://h/elsewhere"
    assert settings.mode == "local"


def test_an_unknown_variable_is_refused_unless_it_may_be_another_datasources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXPOOL_DS_ORDERS_EU_URL", "postgresql://h/x")
    monkeypatch.setenv("TXPOOL_DS_ORDERS_POOL_URL", "postgresql://h/x")  # of one that is called orders-pool
    DataSourceSettings.load(write("conf/orders.properties", ORDERS))
    monkeypatch.setenv("TXPOOL_DS_ORDERS_POOL_MAXSIZE", "5")
    assert refused(ORDERS) == "unknown variable TXPOOL_DS_ORDERS_POOL_MAXSIZE: did you mean POOL_MAX_SIZE?"


def test_narayanas_names_are_understood() -> None:
    text = "driver = psycopg\nURL = postgresql://h/db\nUser = app\nPassword = ${env:TXPOOL_TEST_NO_SUCH}\n"
    settings = DataSourceSettings.load(write("conf/orders.properties", text))
    assert (settings.url, settings.user) == ("postgresql://h/db", "app")
    assert settings.password is not None
    assert "is given as URL too (conf/orders.properties:2)" in refused(text + "url = postgresql://h/db\n")


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        (
            "driver = psycopg\n",
            "",
            "url is missing: write url = postgresql://user@host:5432/database, or set TXPOOL_DS_",
        ),
        ("driver = psycopg\n", "", "TXPOOL_DS_ORDERS_URL"),
        ("url = postgresql://h/db\n", "", "driver is missing: write driver = psycopg or driver = sqlite3"),
        ("driver = oracle\n", ":1", "driver = 'oracle' is not one of them: write psycopg or sqlite3"),
        (ORDERS + "mode = tcc\n", ":3", "mode = 'tcc' is not one of them: write xa or cmr or last-resource or local"),
        (ORDERS + "pool.maxsize = 5\n", ":3", "unknown key pool.maxsize: did you mean pool.max-size?"),
        (ORDERS + "Pool.Max-Size = 5\n", ":3", "did you mean pool.max-size?"),
        (ORDERS + "name = a b\n", ":3", "name = 'a b' is not right: write 1 to 32 of"),
        (ORDERS + "pool.min-size = 11\n", ":3", "pool.min-size = '11' is above pool.max-size, which is 10"),
        (ORDERS + "cmr.batch-size = 0\n", ":3", "write 1 or more"),
        (ORDERS + "driver.password = hunter2\n", ":3", "driver.password is not passed to the driver: write password"),
        ("driver = psycopg\nurl = mysql://app:hunter2@h/db\n", ":2", "is no url for psycopg: write postgresql://"),
        ("driver = psycopg\nurl = postgresql://h/db?sslpassword=hunter2\n", ":2", "passwords have keys of their own"),
        ("driver = sqlite3\nurl = sqlite:///a.db\n", ", by default", "SQLite cannot prepare. Write mode = cmr"),
        ("driver = sqlite3\nmode = xa\nurl = sqlite:///a.db\n", ":2", "SQLite cannot prepare. Write mode = cmr"),
        ("driver = sqlite3\nmode = cmr\nurl = sqlite:///:memory:\n", ":3", "cannot be recovered"),
        ("driver = sqlite3\nmode = cmr\nurl = sqlite:///\n", ":3", "names no file"),
        ("driver = sqlite3\nmode = cmr\nurl = ledger.db\n", ":3", "write sqlite:///file.db"),
        (LEDGER + "password = hunter2\n", ":4", "password has no use: SQLite knows no users"),
    ],
)
def test_what_is_wrong_is_said_with_file_line_key_and_what_is_right(text: str, where: str, message: str) -> None:
    complaint = refused(text)
    assert complaint.startswith(f"conf/orders.properties{where}: ")
    assert message in complaint


def test_a_wrong_argument_or_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(ORDERS, pool_maxsize=5) == "unknown argument pool_maxsize: did you mean pool_max_size?"
    assert refused(ORDERS, pool_max_size=0).startswith("argument pool_max_size: pool.max-size = '0' is too small")
    assert "a object cannot be serialized" in refused(ORDERS, driver_row_factory=object())
    monkeypatch.setenv("TXPOOL_DS_ORDERS_POOL_MAX_SIZE", "many")
    assert refused(ORDERS).startswith("the variable TXPOOL_DS_ORDERS_POOL_MAX_SIZE: pool.max-size = 'many'")


def test_a_file_whose_name_is_no_name_must_say_one() -> None:
    with pytest.raises(ConfigurationError, match="name = 'my orders' is not right"):
        DataSourceSettings.load(write("my orders.properties", ORDERS))
    with pytest.raises(ConfigurationError, match="name is missing"):
        DataSourceSettings.load(driver="psycopg", url="postgresql://h/db")


def test_a_sqlite_path_is_relative_to_its_file_or_to_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("conf/ledger.properties", LEDGER)
    assert DataSourceSettings.load(file).url == f"sqlite:///{Path.cwd()}/conf/ledger.db"
    assert DataSourceSettings.load(file, url="sqlite:////data/x.db").url == "sqlite:////data/x.db"
    assert DataSourceSettings.load(file, url="sqlite:///x.db").url == f"sqlite:///{Path.cwd()}/x.db"
    monkeypatch.setenv("TXPOOL_DS_LEDGER_URL", "sqlite:///y.db")
    assert DataSourceSettings.load(file).url == f"sqlite:///{Path.cwd()}/y.db"


def test_keys_differ_and_make_a_table() -> None:
    keys = DATASOURCE_KEYS + COORDINATOR_KEYS + RECOVERY_KEYS
    rows = reference(keys).splitlines()
    assert len(rows) == len(keys) + 2
    assert "| `pool.max-size` | integer | `10` | How many connections are open at most. |" in rows
    drivers = " or ".join(BUILT_IN)
    own = "The DB-API driver, or package.module:Class for a resource of your own."
    assert any(row.startswith(f"| `driver` | {drivers} |  | {own}") for row in rows)
    assert any(row.startswith("| `pool.leak-threshold` | duration or none | `none` |") for row in rows)
    assert len({key.name for key in keys}) == len(keys)
    assert len({key.word for key in keys}) == len(keys)
