"""A key of another kind, which would be ignored in silence, is refused; and each kind takes what it has a use for."""

from __future__ import annotations

import pytest

from tests.unit.config.settings_files import LEDGER, ORDERS, refused, write
from txpool.config.keys import DATASOURCE_KEYS
from txpool.config.keys.kinds import _DRIVERS, JUDGED, drivers_with
from txpool.config.settings import DataSourceSettings
from txpool.errors import ConfigurationError
from txpool.resource_managers import BUILT_IN, DATABASES, find_resource_manager
from txpool.resources.database import Database

pytestmark = pytest.mark.usefixtures("own_environment")

KAFKA = "driver = kafka\nurl = kafka://h\ntopic = orders\n"
JMS = "driver = jms\nurl = tcp://h:1\nqueue = orders\njdbc.classpath = x.jar\n"
QUEUE = "driver = sql-queue\nqueue = orders\nqueue.datasource = orders.properties\n"
FILES = "driver = files\nfolder = exports\n"
#: A value that each kind of key takes.
VALUES = {"integer": "3", "boolean": "true", "duration": "10", "identifier": "x", "file": "x.properties"}


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        (JMS, "offsets.datasource = x", "is a key of driver = kafka, and has no use with driver = jms: leave it out"),
        (JMS, "group = shop", "is a key of driver = kafka, and has no use with driver = jms: leave it out"),
        (JMS, "queue.ordered = true", "is a key of driver = sql-queue, and has no use with driver = jms: leave it out"),
        (KAFKA, "queue = x", "is a key of driver = sql-queue, jms, and has no use with driver = kafka: leave it out"),
        (KAFKA.replace("topic", "queue"), "", "has no use with driver = kafka: write topic"),
        (KAFKA, "queue.datasource = x", "has no use with driver = kafka: write offsets.datasource"),
        (KAFKA, "pool.max-size = 3", "is a key of a database or driver = jms, and has no use with driver = kafka"),
        (KAFKA, "recovery.user = x", "has no use with driver = kafka: leave it out"),
        (KAFKA, "jvm.options = -Xmx1m", "is a key of driver = jdbc, jms, and has no use with driver = kafka"),
        (QUEUE, "topic = x", "is a key of driver = kafka, jms, and has no use with driver = sql-queue: leave it out"),
        (QUEUE, "pool.max-wait = 3", "is a key of a database, and has no use with driver = sql-queue: leave it out"),
        (QUEUE, "password = hunter2", "and has no use with driver = sql-queue: leave it out"),
        (QUEUE, "url = sql-queue:other.properties", "and has no use with driver = sql-queue: leave it out"),
        (QUEUE, "driver.x = 1", "and has no use with driver = sql-queue: leave it out"),
        (FILES, "queue = x", "is a key of driver = sql-queue, jms, and has no use with driver = files: leave it out"),
        (ORDERS, "topic = x", "is a key of driver = kafka, jms, and has no use with driver = psycopg: leave it out"),
        ("driver = jdbc\nurl = jdbc:x:y\n", "warehouse = x", "leave it out, or write driver.warehouse for the setter"),
        (LEDGER, "folder = x", "is a key of driver = files, delta, and has no use with driver = sqlite3: leave it out"),
        # Where nothing is received, nothing is parked.
        (KAFKA, "parking.after = 3", "has no use without group, in which a session receives: write group"),
        (KAFKA, "parking = x", "has no use without group"),
        (KAFKA, "offsets.datasource = x", "has no use without group"),
        (JMS.replace("queue", "topic"), "parking.after = 3", "has no use with topic, from which nothing is received"),
        (JMS.replace("queue", "topic"), "parking = x", "has no use with topic"),
    ],
)
def test_a_key_of_another_kind_is_refused_in_one_sentence(text: str, key: str, says: str) -> None:
    said = refused(f"{text}{key}\n")
    assert said.count("\n") == 0
    assert says in said
    assert key.partition(" ")[0] in said


def test_it_is_refused_from_the_environment_and_from_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(KAFKA, pool_max_size=3).startswith("argument pool_max_size: pool.max-size = '3' is a key of")
    monkeypatch.setenv("TXPOOL_DS_ORDERS_POOL_MAX_SIZE", "3")
    assert refused(KAFKA).startswith("the variable TXPOOL_DS_ORDERS_POOL_MAX_SIZE: pool.max-size = '3' is a key of")


@pytest.mark.parametrize("text", [KAFKA, JMS, QUEUE])
def test_a_session_takes_what_it_has_a_use_for(text: str) -> None:
    driver = text.split()[2]
    more = "group = shop\n" if driver == "kafka" else ""
    given = {line.partition(" ")[0] for line in (text + more).splitlines()} | {"driver"}
    skipped = {"name", "url", "mode", "transaction.isolation", "transaction.read-only", "credentials", "topic"}
    for key in DATASOURCE_KEYS:
        drivers = drivers_with(key.name)
        if key.name in given | skipped or (drivers is not None and driver not in drivers):
            continue
        DataSourceSettings.load(
            write("conf/orders.properties", f"{text}{more}{key.name} = {VALUES.get(key.kind, 'x')}\n")
        )


def test_jms_keys_are_those_of_its_relay_too() -> None:
    text = ORDERS + "jdbc.classpath = x.jar\n"
    DataSourceSettings.load(write("conf/orders.properties", text + "outbox.deliver = jms\n"))
    with pytest.raises(ConfigurationError, match="has no use with driver = psycopg"):
        DataSourceSettings.load(write("conf/orders.properties", text + "outbox.deliver = kafka\n"))


def test_every_key_of_the_table_is_one_and_the_databases_are_all() -> None:
    names = {key.name for key in DATASOURCE_KEYS} | {"driver.x"}
    assert [
        each for each in _DRIVERS if not any(n == each or (each[-1] == "." and n.startswith(each)) for n in names)
    ] == []
    assert {*BUILT_IN} == JUDGED
    assert {each for each in BUILT_IN if isinstance(find_resource_manager(each), Database)} == {*DATABASES}
