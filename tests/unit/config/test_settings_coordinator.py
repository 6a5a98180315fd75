"""Settings of a coordinator and of recovery: how they are found, their precedence, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config.settings_files import PASSWORD, write
from txpool.config.properties import Properties
from txpool.config.settings import CoordinatorSettings, RecoverySettings
from txpool.errors import ConfigurationError

pytestmark = pytest.mark.usefixtures("own_environment")


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
        ("log.url = oracle://app:hunter2@h/db", "write sqlite:///folder, postgresql://user@host:5432/database, "),
        ("log.url = postgresql://h/db?sslpassword=hunter2", "passwords have keys of their own"),
        ("log.password = hunter2\nlog.url = postgresql://app:hunter2@h/db", "log.password is given twice"),
        ("log.password = hunter2\nlog.url = sqlite:///txlog", "log.password has no use: only a log on a server"),
        ("log.user = app\nlog.url = memory:", "log.user = 'app' has no use: only a log on a server"),
        ("log.url =", "cannot name a log"),
        ("log.url = sqlite:///", "write sqlite:///folder"),
        ("log.uri = memory:", "unknown key log.uri: did you mean log.url?"),
        ("recovery.log.url = memory:", "unknown key recovery.log.url: did you mean log.url?"),
        ("timeout = 3s", "unknown key timeout: did you mean transaction.timeout?"),
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
    monkeypatch.setenv("TXPOOL_TEST_EVERY_PAIR", "1")
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
