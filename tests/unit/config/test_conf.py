"""Every file of conf/ loads, and every key in it, commented out or not, is a known one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.repository import ROOT
from txpool.config.keys import COORDINATOR_KEYS, DATASOURCE_KEYS, RECOVERY_KEYS
from txpool.config.properties import Properties
from txpool.config.settings import CoordinatorSettings, DataSourceSettings, RecoverySettings
from txpool.resources.kafka.timeouts import most

CONF = ROOT / "conf"
FILES = sorted(CONF.glob("*.properties"))
DATASOURCES = {
    "orders": "xa",
    "stock": "xa",
    "derby": "xa",
    "ledger": "cmr",
    "marked-postgresql": "cmr",
    "audit": "last-resource",
    "orders-in": "xa",
    "orders-kafka": "xa",
    "orders-jms": "xa",
    "exports": "xa",
    "objects": "xa",
    "warehouse": "xa",
    "events": "xa",
    "tables": "xa",
}
SESSIONS = {"orders-in", "orders-kafka", "orders-jms"}
#: What another key stands in the place of.
IN_PLACE_OF = {
    "credentials": {"password"},
    "jdbc.driver-class": {"xaDataSourceClassName", "mode", "databaseName", "createDatabase"},
}
#: Of a Java class.
SETTERS = {"databaseName", "createDatabase"}
COORDINATION = ("txpool", "cluster", "recovery")
PASSWORDS = {
    "orders": "ORDERS_PASSWORD",
    "stock": "STOCK_PASSWORD",
    "marked-postgresql": "BILLING_PASSWORD",
    "events": "CATALOG_TOKEN",
}


def test_every_file_is_of_a_kind_that_is_tested_here() -> None:
    assert {file.stem for file in FILES} == {*DATASOURCES, *COORDINATION}


def test_a_transaction_of_conf_may_send_to_a_stock_kafka() -> None:
    """Whose transaction.max.timeout.ms is 15 minutes: a longer timeout than a third of that is refused."""
    timeout = CoordinatorSettings.load(CONF / "txpool.properties").transaction_timeout
    assert timeout is not None
    assert timeout <= most(900)


@pytest.mark.parametrize("stem", DATASOURCES)
def test_a_datasource_loads(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if stem in PASSWORDS:
        monkeypatch.setenv(PASSWORDS[stem], "hunter2")
    settings = DataSourceSettings.load(CONF / f"{stem}.properties")
    assert settings.mode == DATASOURCES[stem]
    assert [secret.reveal() for secret in settings.secrets] == (["hunter2"] if stem in PASSWORDS else [])
    assert settings.driver != "sqlite3" or settings.url == f"sqlite:///{CONF / stem}.db"
    assert DataSourceSettings.from_serialized(settings.serialized()) == settings


def test_the_coordinator_and_recovery_share_a_node_and_a_log() -> None:
    coordinator = CoordinatorSettings.load(CONF / "txpool.properties")
    recovery = RecoverySettings.load(CONF / "recovery.properties")
    assert (coordinator.node_name, coordinator.log_url) == (recovery.node_name, recovery.log_url)
    assert coordinator.log_url == f"sqlite:///{CONF / 'txlog'}"
    assert (coordinator.log_create, recovery.log_create) == (True, False)
    assert {path.stem for path in recovery.datasources} == set(DATASOURCES) - SESSIONS - {
        "events",
        "exports",
        "objects",
        "tables",
    }


def test_a_coordinator_of_a_cluster_has_its_log_on_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXLOG_PASSWORD", "hunter2")
    settings = CoordinatorSettings.load(CONF / "cluster.properties")
    assert (settings.node_name, settings.log_url) == ("etl-1", "postgresql://txpool@localhost/txlog")
    assert settings.log_password is not None
    assert settings.log_password.reveal() == "hunter2"
    assert "hunter2" not in repr(settings)
    assert settings.log_create is False


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_keys_that_are_commented_out_are_known_and_right(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in re.findall(r"\$\{env:(\w+)\}", file.read_text()):
        monkeypatch.setenv(variable, "hunter2")
    live = Properties.load(file)
    examples = re.findall(r"^#([\w.-]+ = .+)$", file.read_text(), re.MULTILINE)
    for example in examples:
        key = example.split(" = ")[0]
        left_out = {key, *IN_PLACE_OF.get(key, ())}
        others = "\n".join(f"{other} = {live[other]}" for other in live if other not in left_out)
        if key == "jdbc.driver-class":
            others += "\nmode = local\nurl = jdbc:sqlite:orders.db"
        text = Properties.parse(f"{others}\n{example}\n", path=file)
        if file.stem in DATASOURCES:
            DataSourceSettings.load(text)
        else:
            RecoverySettings.load(text)


def test_every_key_of_the_tables_is_shown_in_some_file() -> None:
    shown = set(re.findall(r"^#?([\w.-]+) = ", "\n".join(file.read_text() for file in FILES), re.MULTILINE))
    known = {key.name for key in DATASOURCE_KEYS + COORDINATOR_KEYS + RECOVERY_KEYS}
    missing = known - shown - {"user"}  # the urls of conf/ name their users
    assert not missing, f"write {missing} into a file of conf/, with a comment; after # if it is not the usual case"
    assert {key for key in shown - known if not key.startswith("driver.")} == SETTERS
