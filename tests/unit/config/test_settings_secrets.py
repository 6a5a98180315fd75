"""Passwords in settings, what the driver is given, and what travels: never a password."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import psycopg.conninfo
import pytest

from tests.support.repository import ROOT
from tests.unit.config.settings_files import LEDGER, ORDERS, PASSWORD, refused, write
from txpool.config.properties import Secret, SecurityWarning
from txpool.config.settings import DataSourceSettings
from txpool.errors import ConfigurationError

pytestmark = pytest.mark.usefixtures("own_environment")


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
    travelled = settings.serialized()
    pickled = pickle.dumps(settings)
    for shown in (repr(settings), str(settings), f"{settings}", repr(settings.properties), repr(travelled)):
        assert PASSWORD not in shown
    assert PASSWORD.encode() not in pickled
    assert travelled["text"] is None
    assert pickle.loads(pickled) == settings

    file.unlink()
    with pytest.raises(ConfigurationError, match="was not sent, and it cannot be read here") as caught:
        pickle.loads(pickled)
    assert PASSWORD not in str(caught.value)
    with pytest.raises(ConfigurationError, match="cannot travel") as caught:
        settings.serialized()
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("password", [PASSWORD, Secret(PASSWORD)], ids=["text", "secret"])
def test_a_password_from_code_does_not_travel(password: str | Secret) -> None:
    settings = DataSourceSettings.load(write("conf/orders.properties", ORDERS), password=password)
    assert settings.connect_options()["password"] == PASSWORD
    assert PASSWORD not in repr(settings)
    for send in (settings.serialized, lambda: pickle.dumps(settings)):
        with pytest.raises(ConfigurationError, match="argument password: password holds a password itself") as caught:
            send()
        assert PASSWORD not in str(caught.value)


def test_a_password_that_the_environment_overrides_does_not_travel_in_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("conf/orders.properties", ORDERS + "password = hunter2\n")
    monkeypatch.setenv("TXPOOL_DS_ORDERS_PASSWORD", "hunter3")
    settings = DataSourceSettings.load(file)
    assert settings.connect_options()["password"] == "hunter3"
    assert "hunter" not in repr(settings.serialized())
    assert b"hunter" not in pickle.dumps(settings)
    with pytest.raises(ConfigurationError, match="cannot travel"):
        pickle.dumps(settings.properties)
    assert DataSourceSettings.from_serialized(settings.serialized()) == settings


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
    travelled = json.dumps(settings.serialized())
    assert "hunter" not in travelled
    assert sorted(json.loads(travelled)) == ["folder", "name", "overrides", "path", "text"]
    file.unlink()
    write("key", "the key\n")

    elsewhere = tmp_path_factory.mktemp("executor")
    program = (
        "import json, sys; from txpool.config.settings import DataSourceSettings as S;"
        "s = S.from_serialized(json.load(sys.stdin));"
        "print(json.dumps([repr(s), s.connect_options(), s.recovery_password.reveal(), s.name, s.url]))"
    )
    environment = {
        "PYTHONPATH": str(ROOT),
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
    travelled = DataSourceSettings.load(file).serialized()
    overridden = DataSourceSettings.load(file, url="sqlite:///x.db").serialized()
    monkeypatch.chdir("/")
    assert DataSourceSettings.from_serialized(travelled).url == f"sqlite:///{here}/conf/ledger.db"
    assert DataSourceSettings.from_serialized(overridden).url == f"sqlite:///{here}/x.db"
    assert (
        DataSourceSettings.from_serialized(DataSourceSettings.from_serialized(overridden).serialized()).url
        == f"sqlite:///{here}/x.db"
    )


@pytest.mark.parametrize(
    ("hosts", "travels"),
    [
        ("app:,hunter2${env:TAIL}", False),
        ("app:1,hunter2${env:TAIL}", False),
        ("h1:5432,${env:HOST}", True),
        ("[::1]:5432,h2:5432,${env:HOST}", True),
        ("h1:${env:PORT}", True),
        ("${env:HOST}:5432", True),
    ],
)
def test_what_may_be_the_beginning_of_a_password_does_not_travel(
    hosts: str, travels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the end of a password and the host in TAIL, as in @h."""
    for name, value in {"TAIL": "@h", "HOST": "h", "PORT": "5432"}.items():
        monkeypatch.setenv(name, value)
    settings = DataSourceSettings.load(name="orders", driver="psycopg", url=f"postgresql://{hosts}/db")
    if travels:
        assert DataSourceSettings.from_serialized(settings.serialized()) == settings
    else:
        with pytest.raises(ConfigurationError, match="cannot travel"):
            settings.serialized()
