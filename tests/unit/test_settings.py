"""Settings: precedence, names, what is refused and in which words, and what travels."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import psycopg.conninfo
import pytest

from txpool.errors import ConfigurationError
from txpool.keys import COORDINATOR_KEYS, DATASOURCE_KEYS, RECOVERY_KEYS, reference
from txpool.properties import Properties, Secret, SecurityWarning
from txpool.settings import CoordinatorSettings, DataSourceSettings, RecoverySettings

PASSWORD = "hunter2"
ORDERS = "driver = psycopg\nurl = postgresql://app@localhost/orders\n"
LEDGER = "driver = sqlite3\nmode = cmr\nurl = sqlite:///ledger.db\n"


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TXPOOL_CONF", raising=False)


def write(path: str, text: str, mode: int = 0o600) -> Path:
    file = Path(path)
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    return file


def refused(text: str, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        DataSourceSettings.load(write("conf/orders.properties", text), **options)
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))
    return str(caught.value)


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
    message = refused("xaDataSourceClassName = org.postgresql.xa.PGXADataSource\nURL = jdbc:postgresql://h/db\n")
    assert "orders.properties:1" in message
    assert "JDBC is no part of this version: write driver = psycopg" in message


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
    assert "a object cannot travel" in refused(ORDERS, driver_row_factory=object())
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


def test_a_password_in_the_url_is_taken_out_of_it() -> None:
    url = "postgresql://app:hunter2@localhost/orders?connect_timeout=5"
    settings = DataSourceSettings.load(name="orders", driver="psycopg", url=url)
    assert settings.url == "postgresql://app@localhost/orders?connect_timeout=5"
    parameters = psycopg.conninfo.conninfo_to_dict(settings.url, **settings.connect_options())
    assert parameters == psycopg.conninfo.conninfo_to_dict(url)


def test_the_password_comes_from_the_higher_source(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = "driver = psycopg\nurl = postgresql://app:old@h/db\n"
    assert "given twice, here and in the url (conf/orders.properties:2)" in refused(inside + "password = hunter2\n")
    file = write("conf/orders.properties", inside)
    monkeypatch.setenv("TXPOOL_DS_ORDERS_PASSWORD", PASSWORD)
    assert DataSourceSettings.load(file).connect_options()["password"] == PASSWORD
    file = write("conf/orders.properties", ORDERS + "password = old\n")
    monkeypatch.delenv("TXPOOL_DS_ORDERS_PASSWORD")
    monkeypatch.setenv("TXPOOL_DS_ORDERS_URL", "postgresql://app:hunter2@h/db")
    assert DataSourceSettings.load(file).connect_options()["password"] == PASSWORD


def test_a_password_in_a_variable_is_taken_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXPOOL_DS_ORDERS_PASSWORD", "${env:HOME}$${")
    monkeypatch.setenv("TXPOOL_DS_ORDERS_USER", "${env:HOME}")
    settings = DataSourceSettings.load(write("conf/orders.properties", ORDERS))
    assert settings.connect_options() == {"user": "${env:HOME}", "password": "${env:HOME}$${"}


def test_what_the_driver_is_given() -> None:
    text = ORDERS + "user = app\npassword = one\nrecovery.user = dba\nrecovery.password = two\ndriver.keepalives = 1\n"
    settings = DataSourceSettings.load(write("conf/orders.properties", text))
    assert settings.connect_options() == {"user": "app", "password": "one", "keepalives": 1}
    assert settings.connect_options(recovery=True) == {"user": "dba", "password": "two", "keepalives": 1}
    assert [secret.reveal() for secret in settings.secrets] == ["one", "two"]


@pytest.mark.parametrize(
    "text",
    [
        ORDERS + "password = hunter2\n",
        ORDERS + "recovery.user = a\nrecovery.password = hunter2\n",
        ORDERS + "driver.sslpassword = hunter2\n",
        ORDERS + "driver.service = host=h password=hunter2\n",
        "driver = psycopg\nurl = postgresql://app:hunter2@h/db\n",
        "driver = psycopg\nurl = postgresql://h/db?password=hunter2\n",
    ],
)
def test_an_inline_password_is_not_shown_and_its_file_travels_by_path_only(text: str) -> None:
    file = write("conf/orders.properties", "# was: hunter2\n" + text)
    settings = DataSourceSettings.load(file)
    assert settings.secrets[0].reveal().endswith(PASSWORD)
    travelled = settings.travel()
    pickled = pickle.dumps(settings)
    for shown in (repr(settings), str(settings), f"{settings}", repr(settings.properties), repr(travelled)):
        assert PASSWORD not in shown
    assert PASSWORD.encode() not in pickled
    assert travelled["text"] is None
    assert pickle.loads(pickled) == settings

    file.unlink()
    with pytest.raises(ConfigurationError, match="did not travel, and it cannot be read here") as caught:
        pickle.loads(pickled)
    assert PASSWORD not in str(caught.value)
    with pytest.raises(ConfigurationError, match="cannot travel") as caught:
        settings.travel()
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("password", [PASSWORD, Secret(PASSWORD)], ids=["text", "secret"])
def test_a_password_from_code_does_not_travel(password: str | Secret) -> None:
    settings = DataSourceSettings.load(write("conf/orders.properties", ORDERS), password=password)
    assert settings.connect_options()["password"] == PASSWORD
    assert PASSWORD not in repr(settings)
    for send in (settings.travel, lambda: pickle.dumps(settings)):
        with pytest.raises(ConfigurationError, match="argument password: password holds a password itself") as caught:
            send()
        assert PASSWORD not in str(caught.value)


def test_a_password_that_the_environment_overrides_does_not_travel_in_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("conf/orders.properties", ORDERS + "password = hunter2\n")
    monkeypatch.setenv("TXPOOL_DS_ORDERS_PASSWORD", "hunter3")
    settings = DataSourceSettings.load(file)
    assert settings.connect_options()["password"] == "hunter3"
    assert "hunter" not in repr(settings.travel())
    assert b"hunter" not in pickle.dumps(settings)
    with pytest.raises(ConfigurationError, match="cannot travel"):
        pickle.dumps(settings.properties)
    assert DataSourceSettings.arrive(settings.travel()) == settings


def test_a_file_with_a_password_that_others_can_read_is_warned_of_through_settings() -> None:
    file = write("conf/orders.properties", ORDERS + "Password = hunter2\n", mode=0o644)
    with pytest.warns(SecurityWarning, match="Password in it holds a password"):
        DataSourceSettings.load(file)


def test_settings_travel_as_text_and_are_resolved_where_they_arrive(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERS_PASSWORD", PASSWORD)
    monkeypatch.setenv("TXPOOL_DS_SHOP_URL", "postgresql://app@elsewhere/shop")
    monkeypatch.setenv("TXPOOL_DS_SHOP_RECOVERY_PASSWORD", "hunter3")
    text = f"#password = {PASSWORD}\nname = shop\npassword = ${{env:ORDERS_PASSWORD}}\n{ORDERS}"
    file = write("conf/orders.properties", text)
    settings = DataSourceSettings.load(file, pool_max_size=3, driver_sslkey="${file:key}")
    travelled = json.dumps(settings.travel())
    assert "hunter" not in travelled
    assert sorted(json.loads(travelled)) == ["folder", "name", "overrides", "path", "text"]
    file.unlink()
    write("key", "the key\n")

    elsewhere = tmp_path_factory.mktemp("executor")
    program = (
        "import json, sys; from txpool.settings import DataSourceSettings as S;"
        "s = S.arrive(json.load(sys.stdin));"
        "print(json.dumps([repr(s), s.connect_options(), s.recovery_password.reveal(), s.name, s.url]))"
    )
    environment = {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "ORDERS_PASSWORD": "of the executor",
        "TXPOOL_DS_SHOP_RECOVERY_PASSWORD": "of the executor, too",
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=travelled,
        capture_output=True,
        text=True,
        check=True,
        cwd=elsewhere,
        env=environment,
    )
    shown, options, recovery, name, url = json.loads(done.stdout)
    assert shown == repr(settings)
    assert options == {"password": "of the executor", "sslkey": "the key"}
    assert recovery == "of the executor, too"
    assert (name, url) == ("shop", "postgresql://app@elsewhere/shop")


def test_relative_paths_stay_what_they_were_where_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("conf/ledger.properties", LEDGER)
    here = Path.cwd()
    travelled = DataSourceSettings.load(file).travel()
    overridden = DataSourceSettings.load(file, url="sqlite:///x.db").travel()
    monkeypatch.chdir("/")
    assert DataSourceSettings.arrive(travelled).url == f"sqlite:///{here}/conf/ledger.db"
    assert DataSourceSettings.arrive(overridden).url == f"sqlite:///{here}/x.db"
    assert DataSourceSettings.arrive(DataSourceSettings.arrive(overridden).travel()).url == f"sqlite:///{here}/x.db"


def test_the_coordinator_needs_nothing() -> None:
    settings = CoordinatorSettings.load()
    assert (settings.node_name, settings.log_url, settings.log_create) == (None, None, False)
    assert (settings.transaction_timeout, settings.datasources) == (None, ())
    assert CoordinatorSettings.find() == settings


def test_the_coordinators_keys_and_their_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "node.name = etl-1\nlog.url = sqlite:///txlog\nlog.create = true\ntransaction.timeout = 10m\n"
    text += "recovery.period = 1\ndatasources = orders.properties, /ledger.properties\n"
    file = write("conf/txpool.properties", text)
    conf = Path.cwd() / "conf"
    monkeypatch.setenv("TXPOOL_NODE_NAME", "etl-2")
    monkeypatch.setenv("TXPOOL_TRANSACTION_TIMEOUT", "20m")
    settings = CoordinatorSettings.load(file, transaction_timeout=5)
    assert settings.node_name == "etl-2"
    assert settings.log_url == f"sqlite:///{conf}/txlog"
    assert settings.log_create is True
    assert settings.transaction_timeout == 5.0
    assert settings.datasources == (conf / "orders.properties", Path("/ledger.properties"))
    monkeypatch.setenv("TXPOOL_LOG_URL", "memory:")
    assert CoordinatorSettings.load(file).log_url == "memory:"
    assert CoordinatorSettings.load(file, datasources=[conf / "a", "b"]).datasources == (conf / "a", Path.cwd() / "b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node.name = a/b", "node.name = 'a/b' is not right: write 1 to 28 of"),
        (f"node.name = {'n' * 29}", "write 1 to 28 of"),
        ("log.url = mysql://app:hunter2@h/db", "write sqlite:///folder, postgresql://user@host:5432/database, or"),
        ("log.url = postgresql://h/db?sslpassword=hunter2", "passwords have keys of their own"),
        ("log.password = hunter2\nlog.url = postgresql://app:hunter2@h/db", "log.password is given twice"),
        ("log.password = hunter2\nlog.url = sqlite:///txlog", "log.password has no use: only a log on a server"),
        ("log.user = app\nlog.url = memory:", "log.user = 'app' has no use: only a log on a server"),
        ("log.url =", "is no place for a log"),
        ("log.url = sqlite:///", "write sqlite:///folder"),
        ("log.uri = memory:", "unknown key log.uri: did you mean log.url?"),
        ("transaction.timeout = 0", "must be longer than nothing"),
    ],
)
def test_a_wrong_coordinator(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        CoordinatorSettings.load(Properties.parse(text, path="conf/txpool.properties"))
    assert str(caught.value).startswith("conf/txpool.properties:1: ")
    assert message in str(caught.value)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("loader", [CoordinatorSettings, RecoverySettings])
def test_the_password_of_a_log_on_a_server_is_a_secret(
    loader: type[CoordinatorSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [
        "log.url = postgresql://app:hunter2@h:5432/db",
        "log.url = postgresql://app@h:5432/db\nlog.password = hunter2",
        "log.url = postgresql://app@h:5432/db\nlog.password = ${env:LOG_SECRET}",
    ]
    monkeypatch.setenv("LOG_SECRET", PASSWORD)
    for text in texts:
        settings = loader.load(Properties.parse(text))
        assert settings.log_url == "postgresql://app@h:5432/db"
        assert settings.log_password is not None
        assert settings.log_password.reveal() == PASSWORD
        assert PASSWORD not in repr(settings)
    monkeypatch.setenv("TXPOOL_LOG_PASSWORD", "newer")
    monkeypatch.setenv("TXPOOL_LOG_USER", "writer")
    settings = loader.load(Properties.parse(texts[1]))
    assert settings.log_user == "writer"
    assert settings.log_password is not None
    assert settings.log_password.reveal() == "newer"
    assert "newer" not in repr(settings)


def test_an_unknown_variable_of_the_coordinator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXPOOL_TEST_DOCKER", "1")
    monkeypatch.setenv("TXPOOL_DS_LOG_URL", "sqlite:///x")
    CoordinatorSettings.load()
    monkeypatch.setenv("TXPOOL_LOG_URI", "memory:")
    with pytest.raises(ConfigurationError, match="unknown variable TXPOOL_LOG_URI: did you mean LOG_URL"):
        CoordinatorSettings.load()


def test_the_file_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    write("conf/txpool.properties", "node.name = by-place\n")
    assert CoordinatorSettings.find().node_name == "by-place"
    monkeypatch.setenv("TXPOOL_CONF", str(write("other.properties", "node.name = by-variable\n")))
    assert CoordinatorSettings.find().node_name == "by-variable"
    monkeypatch.setenv("TXPOOL_CONF", "none.properties")
    with pytest.raises(ConfigurationError, match=r"TXPOOL_CONF = 'none\.properties' names no file"):
        CoordinatorSettings.find()


def test_recovery() -> None:
    settings = RecoverySettings.load(node_name="etl-1", log_url="sqlite:///txlog", recovery_backoff="500ms")
    assert settings.log_url == f"sqlite:///{Path.cwd()}/txlog"
    assert (settings.recovery_period, settings.recovery_backoff) == (120.0, 0.5)
    assert (settings.recovery_lock_timeout, settings.recovery_expiry_interval) == (5.0, 43200.0)
    with pytest.raises(ConfigurationError, match="longer than nothing"):
        RecoverySettings.load(recovery_period=0)


def test_every_key_is_in_the_reference() -> None:
    keys = DATASOURCE_KEYS + COORDINATOR_KEYS + RECOVERY_KEYS
    rows = reference(keys).splitlines()
    assert len(rows) == len(keys) + 2
    assert "| `pool.max-size` | integer | `10` | Connections at most. |" in rows
    assert "| `driver` | psycopg or sqlite3 |  | The DB-API driver. |" in rows
    assert any(row.startswith("| `pool.leak-threshold` | duration or none | `none` |") for row in rows)
    assert len({key.name for key in keys}) == len(keys)
    assert len({key.word for key in keys}) == len(keys)
