"""The keys that users bring from other products are answered with the right key, and its unit."""

from __future__ import annotations

import re

import pytest

from txpool.config.keys import COORDINATOR_KEYS, DATASOURCE_KEYS, RECOVERY_KEYS, WHOSE
from txpool.config.other_products import all_words, other_word
from txpool.config.properties import Properties
from txpool.config.settings import CoordinatorSettings, DataSourceSettings, RecoverySettings
from txpool.errors import ConfigurationError

ORDERS = "name = orders\ndriver = psycopg\nurl = postgresql://h/db\n"


def refused(line: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        DataSourceSettings.load(Properties.parse(ORDERS + line))
    return str(caught.value).removeprefix("the properties given as text:4: unknown key ")


def refused_by_the_coordinator(line: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        CoordinatorSettings.load(Properties.parse(line))
    return str(caught.value).removeprefix("the properties given as text:1: unknown key ")


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("maximumPoolSize = 20", "maximumPoolSize: that is HikariCP's; write pool.max-size = 20"),
        ("minimumIdle = 2", "minimumIdle: that is HikariCP's; write pool.min-size = 2"),
        (
            "connectionTimeout = 30000",
            "connectionTimeout: that is HikariCP's, in milliseconds; write pool.max-wait = 30000ms",
        ),
        ("idleTimeout = 0", "idleTimeout: that is HikariCP's, in milliseconds; write pool.idle-timeout = none"),
        ("keepaliveTime = 120000", "that is HikariCP's, in milliseconds; write pool.keepalive = 120000ms"),
        ("initialSize = 5", "that is DBCP2's; write pool.min-size = 5 (so many are opened, and kept open)"),
        ("maxTotal = 8", "that is DBCP2's; write pool.max-size = 8"),
        ("maxWaitMillis = 10000", "that is DBCP2's, in milliseconds; write pool.max-wait = 10000ms"),
        ("minIdle = 0", "that is DBCP2's; write pool.min-size = 0"),
        ("testOnBorrow = true", "that is DBCP2's; here a connection is checked when it is taken, unless it was used"),
        ("validationQuery = select 1", "by an empty query: leave it out"),
        ("POOL_CONNECTIONS = true", "POOL_CONNECTIONS: that is Narayana's; write pool.enabled = true"),
        ("maxConnections = 10", "that is Narayana's; write pool.max-size = 10"),
        ("MAXCONNECTIONS = 10", "that is Narayana's; write pool.max-size = 10"),
        ("acquisitionTimeout_ms = 500", "that is Agroal's, in milliseconds; write pool.max-wait = 500ms"),
        ("maxLifetime_m = 30", "that is Agroal's, in minutes; write pool.max-lifetime = 30m"),
        ("pool_recycle = 3600", "that is SQLAlchemy's, in seconds; write pool.max-lifetime = 3600s"),
        ("timeout = 5", "that is psycopg_pool's, in seconds; write pool.max-wait = 5s"),
        # Two products, two units.
        ("maxLifetime = 1800000", "that is HikariCP's, in milliseconds; write pool.max-lifetime = 1800000ms"),
        ("max-lifetime = 1800000", "that is HikariCP's, in milliseconds; write pool.max-lifetime = 1800000ms"),
        ("max_lifetime = 3600", "that is psycopg_pool's, in seconds; write pool.max-lifetime = 3600s"),
        ("max_idle = 600", "that is psycopg_pool's, in seconds; write pool.idle-timeout = 600s"),
        ("maxIdle = 8", "that is DBCP2's; here idle connections above pool.min-size are closed"),
        # A wrong neighbour in spelling: pool.leak-threshold, pool.max-lifetime.
        ("leakDetectionThreshold = 2000", "that is HikariCP's, in milliseconds; write pool.leak-threshold = 2000ms"),
        ("spring.datasource.hikari.maximum-pool-size = 3", "maximum-pool-size: that is HikariCP's; write pool.max-siz"),
        ("quarkus.datasource.jdbc.max-size = 3", "max-size: that is Agroal's; write pool.max-size = 3"),
        ("node.name = x", "node.name: that is a key of the coordinator's file, such as conf/txpool.properties"),
        ("recovery.period = 3", "recovery.period: that is a key of recovery's file"),
        ("transactionIsolation = TRANSACTION_SERIALIZABLE", "did you mean transaction.isolation?"),
        ("readOnly = true", "that is HikariCP's; write transaction.read-only = true"),
        ("connectionInitSql = set x to 1", "that is HikariCP's; write pool.initial-sql"),
        ("passwrod = hunter2", "passwrod: did you mean password?"),
    ],
)
def test_in_a_datasources_file(line: str, advice: str) -> None:
    assert advice in refused(line)


def test_in_the_coordinators_file() -> None:
    advice = refused_by_the_coordinator("CoordinatorEnvironmentBean.defaultTimeout = 300")
    assert advice == "defaultTimeout: that is Narayana's, in seconds; write transaction.timeout = 300s"
    assert "key of a datasource's file" in refused_by_the_coordinator("pool.max-size = 3")
    assert refused_by_the_coordinator("maximumPoolSize = 20") == (
        "maximumPoolSize: that is HikariCP's; write pool.max-size = 20, in a datasource's file, such as "
        "conf/orders.properties"
    )
    # psycopg_pool's word means a wait for a connection, which is none of the coordinator's.
    assert "pool.max-wait" not in refused_by_the_coordinator("timeout = 3")


def test_in_code_and_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = {"name": "orders", "driver": "psycopg", "url": "postgresql://h/db"}
    for option, value, write in (
        ("connectionTimeout", 30000, 'pool_max_wait="30000ms"'),
        ("pool_size", 5, "pool_max_size=5"),
        ("POOL_CONNECTIONS", True, "pool_enabled=True"),
    ):
        with pytest.raises(ConfigurationError, match=write):
            DataSourceSettings.load(**orders, **{option: value})
    monkeypatch.setenv("TXPOOL_DS_ORDERS_MAXIMUM_POOL_SIZE", "5")
    with pytest.raises(ConfigurationError, match="MAXIMUM_POOL_SIZE: write TXPOOL_DS_ORDERS_POOL_MAX_SIZE"):
        DataSourceSettings.load(**orders)


def test_a_variable_of_another_datasource_whose_name_begins_with_this_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXPOOL_DS_ORDERS_JDBC_URL", "postgresql://h/jdbc")
    for name, url in (("orders", "postgresql://h/db"), ("orders-jdbc", "postgresql://h/jdbc")):
        assert DataSourceSettings.load(name=name, driver="psycopg", url=url).url == url


@pytest.mark.parametrize("value", ["hunter2", "-1", "3.5", "${env:X}", "0x10", "1" * 30])
def test_only_a_plain_value_is_shown_again(value: str) -> None:
    assert value not in refused(f"connectionTimeout = {value}")
    assert value not in refused(f"username = {value}")


def test_what_stands_before_the_word_is_not_shown() -> None:
    assert "hunter2" not in refused("hunter2.maximumPoolSize = 3")


def test_every_word_leads_to_a_key_that_there_is() -> None:
    assert {word.key for word in all_words().values()} <= {"", *WHOSE}
    own = {"".join(filter(str.isalnum, key.name)).lower() for key in DATASOURCE_KEYS + COORDINATOR_KEYS + RECOVERY_KEYS}
    assert not own & all_words().keys()


def test_a_word_of_nobodys() -> None:
    assert other_word("colour") is None
    assert "the known ones are name, driver" in refused("colour = blue")


def refused_by_recovery(line: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        RecoverySettings.load(Properties.parse(line))
    return str(caught.value).removeprefix("the properties given as text:1: unknown key ")


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("maxLifetime = -1", "write pool.max-lifetime = none"),
        ("maxLifetime = 0", "write pool.max-lifetime = none"),
        ("maxConnLifetimeMillis = -1", "write pool.max-lifetime = none"),
        ("maxWaitMillis = -1", "write pool.max-wait = 24h (there it means for ever, and here each wait has an end)"),
        ("maxWaitMillis = 0", "write pool.max-wait = 1s (there it means no wait at all"),
        ("connectionTimeout = 0", "write pool.max-wait = 24h (there it means for ever"),
        ("checkoutTimeout = 0", "write pool.max-wait = 24h (there it means for ever"),
        ("maxTotal = -1", "write pool.max-size (here there is always a limit: write how many the server can serve)"),
        ("pool_size = 0", "write pool.max-size (it is SQLAlchemy's pool_size and max_overflow together; here there is"),
        ("max_overflow = -1", "here pool.max-size is SQLAlchemy's pool_size and max_overflow together: leave it out"),
        ("minimumIdle = -1", "write pool.min-size (there it means as many as maximumPoolSize"),
        ("timeBetweenEvictionRunsMillis = -1", "write pool.keepalive = none"),
        ("minEvictableIdleTimeMillis = -1", "write pool.idle-timeout = none"),
        ("validationQueryTimeout = -1", "write pool.check-timeout = 60s (there it means without an end"),
        ("idleValidation_s = 0", "write pool.check-bypass = 24h (there it means that no connection is checked"),
        ("pool_recycle = -1", "write pool.max-lifetime = none"),
        ("pool_recycle = 0", "write pool.max-lifetime = 1s (there it means each time anew)"),
        ("leakDetectionThreshold = -1", "write pool.leak-threshold = none"),
        ("JTAEnvironmentBean.commitMarkableResourceRecordDeleteBatchSize = -1", "write cmr.batch-size = 30000 (there"),
        # As Spring Boot and Quarkus write durations.
        ("spring.datasource.hikari.max-lifetime = -1", "write pool.max-lifetime = none"),
        ("quarkus.datasource.jdbc.acquisition-timeout = PT5S", "write pool.max-wait = 5s"),
        ("quarkus.datasource.jdbc.idle-removal-interval = 5M", "write pool.idle-timeout = 5m"),
        ("quarkus.datasource.jdbc.idle-removal-interval = PT0S", "write pool.idle-timeout = none"),
        ("maxWaitDuration = PT-1S", "write pool.max-wait = 24h (there"),
        ("maxLifetime = ${env:X}", "write pool.max-lifetime, such as 30s"),
    ],
)
def test_a_special_value_keeps_its_meaning(line: str, advice: str) -> None:
    assert advice in refused(line)


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("RecoveryEnvironmentBean.expiryScanInterval = 0", "in hours; write recovery.expiry.interval = none"),
        (
            "RecoveryEnvironmentBean.expiryScanInterval = -12",
            "write recovery.expiry.interval = 12h and recovery.expiry.skip-first = true (there it skips the first run)",
        ),
        ("RecoveryEnvironmentBean.expiryScanInterval = 12", "write recovery.expiry.interval = 12h"),
        ("RecoveryEnvironmentBean.periodicRecoveryPeriod = 0", "write recovery.period = 120s (here it is longer than"),
        ("JTAEnvironmentBean.orphanSafetyInterval = 20000", "in milliseconds; write recovery.backoff = 20000ms"),
        ("CoordinatorEnvironmentBean.defaultTimeout = 0", "write transaction.timeout = none"),
        ("CoordinatorEnvironmentBean.defaultTimeout = -1", "write transaction.timeout = none"),
        ("RecoveryEnvironmentBean.recoveryModuleClassNames = a.b.C", "write recovery.modules (only those of your own"),
        (
            "JTAEnvironmentBean.xaResourceRecoveryClassNames = a.b.C;x",
            "that is Narayana's; write datasources (recovery",
        ),
        ("JTAEnvironmentBean.commitMarkableResourceJNDINames = java:/x", "here mode = cmr in a datasource's own file"),
        (
            "JTAEnvironmentBean.commitMarkableResourceTableNameMap = a=b",
            "write cmr.table (in the file of each such datasource, beside mode = cmr), in a datasource's file",
        ),
        ("JTSEnvironmentBean.commitedTransactionRetryLimit = 3", "here recovery gives no decided transaction up"),
    ],
)
def test_in_recoverys_file(line: str, advice: str) -> None:
    assert advice in refused_by_recovery(line)


def test_a_special_value_in_code() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RecoverySettings.load(expiryScanInterval=-12)
    assert 'write recovery_expiry_interval="12h" and recovery_expiry_skip_first=True' in str(caught.value)
    with pytest.raises(ConfigurationError, match='write pool_max_lifetime="none"'):
        DataSourceSettings.load(name="orders", driver="psycopg", url="postgresql://h/db", maxLifetime=-1)


def test_the_unit_of_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXPOOL_DS_ORDERS_CONNECTION_TIMEOUT", "30000")
    with pytest.raises(ConfigurationError, match="write TXPOOL_DS_ORDERS_POOL_MAX_WAIT=30000ms: that is HikariCP's"):
        DataSourceSettings.load(name="orders", driver="psycopg", url="postgresql://h/db")


_KEYS = {key.name: key for key in DATASOURCE_KEYS + COORDINATOR_KEYS + RECOVERY_KEYS}
_ADVISED = re.compile(r"([a-z]+[a-z.-]*) = (\w+)")


@pytest.mark.parametrize("value", ["0", "-1", "-12", "1", "12", "PT0S", "PT-1S", "-1s", "30S", "hunter2"])
def test_what_is_advised_can_be_read(value: str) -> None:
    for word in all_words().values():
        advised = _ADVISED.findall(word.advice(value)) if word.key else []
        for key, right in advised:
            assert right != "hunter2"
            if _KEYS[key].kind not in ("duration", "integer"):
                continue  # a text, which is as good as any other
            if _KEYS[key] in DATASOURCE_KEYS:
                beside = "pool.max-size = 20\n" if key == "pool.min-size" else ""
                DataSourceSettings.load(Properties.parse(f"{ORDERS}{beside}{key} = {right}"))
            else:
                RecoverySettings.load(Properties.parse(f"{key} = {right}"))


def test_all_keys_of_a_file_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        DataSourceSettings.load(
            Properties.parse(
                f"{ORDERS}maxLifetime = -1\nhunter2x = 3\nPOOL_CONNECTIONS = true\npasswrod = x\nzzz = 1\n"
            )
        )
    given, likest = "the properties given as text", "unknown key"
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        f"{given}:4: {likest} maxLifetime: that is HikariCP's, in milliseconds; write pool.max-lifetime = none"
    )
    assert lines[1] == f"{given}:6: {likest} POOL_CONNECTIONS: that is Narayana's; write pool.enabled = true"
    assert lines[2] == f"{given}:7: {likest} passwrod: did you mean password?"
    assert lines[3].startswith(f"{given}:5, {given}:8: {likest}s: the known ones are name, driver")
    assert len(lines) == 4
    assert "hunter2" not in str(caught.value)


def test_all_arguments_and_all_variables_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = {"name": "orders", "driver": "psycopg", "url": "postgresql://h/db"}
    with pytest.raises(ConfigurationError) as caught:
        DataSourceSettings.load(**orders, maximumPoolSize=5, idleTimeout=0)
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "unknown argument maximumPoolSize",
        "unknown argument idleTimeout",
    ]
    monkeypatch.setenv("TXPOOL_DS_ORDERS_MAXIMUM_POOL_SIZE", "5")
    monkeypatch.setenv("TXPOOL_DS_ORDERS_IDLE_TIMEOUT", "0")
    with pytest.raises(ConfigurationError) as caught:
        DataSourceSettings.load(**orders)
    assert str(caught.value).splitlines() == [
        "unknown variable TXPOOL_DS_ORDERS_IDLE_TIMEOUT: write TXPOOL_DS_ORDERS_POOL_IDLE_TIMEOUT=none: that is "
        "HikariCP's, in milliseconds",
        "unknown variable TXPOOL_DS_ORDERS_MAXIMUM_POOL_SIZE: write TXPOOL_DS_ORDERS_POOL_MAX_SIZE=5: that is "
        "HikariCP's",
    ]
