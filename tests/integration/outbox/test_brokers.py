"""The relays to brokers that cannot prepare: at least once, with an id, and `once()` makes it once."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pika
import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

import txpool
from tests.support import preloaded
from tests.support.brokers import Jms, Kafka, Nats, OutboxBroker, RabbitMQ
from tests.support.shared import own, shared, unique
from tests.support.waiting import SECONDS
from txpool.outbox import Message, Outbox
from txpool.process.exit_codes import TxpoolExitCode

pytestmark = pytest.mark.slow

#: The brokers that take long to start are killed and restart, too.
EVERY = os.environ.get("TXPOOL_CRASH_FULL") == "1"
JAVAS = ("kafka", "jms")
SLOW = ("rabbitmq", *JAVAS)
#: A relay that is killed behind the broker's confirmation of some message, and before its row goes.
_KILLED = """
import itertools, os, signal, sys
from txpool.cli import app
from txpool.outbox import relay

numbers, last = itertools.count(), int(sys.argv[1])
take_away = relay.Relay._take_away

def killed(*given):
    if next(numbers) == last:
        os.kill(os.getpid(), signal.SIGKILL)
    take_away(*given)

relay.Relay._take_away = killed
app(["outbox", "run", "--once", "orders.properties"])
"""


@pytest.fixture(scope="module", params=["nats", "rabbitmq", "kafka", "jms"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutboxBroker]:
    """What is killed is this module's own; else it is the run's."""
    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    if kind == "kafka":
        yield Kafka(folder, request.getfixturevalue("own_kafka" if EVERY else "kafka"))
    elif kind == "jms":
        yield Jms(folder, request.getfixturevalue("own_artemis" if EVERY else "artemis"))
    else:
        make = Nats if kind == "nats" else RabbitMQ
        request.getfixturevalue("require")(not make.missing, make.missing)
        with (shared if kind in SLOW and not EVERY else own)(tmp_path_factory, make) as made:
            yield made


class Shop:
    """A SQLite file with an outbox, and a place of its own at the broker."""

    def __init__(self, folder: Path, broker: OutboxBroker, name: str) -> None:
        self.folder, self.broker, self.name = folder, broker, name
        broker.create(name)
        self.write()
        self.outbox = Outbox(folder / "orders.properties")
        self.outbox.create()

    def write(self, attempts: int = 1000, **more: str) -> None:
        keys = {"deliver": self.broker.name, "broker": self.broker.address, "to": self.name, **more}
        lines = [f"outbox.{key} = {value}\n" for key, value in (keys | {"attempts": str(attempts)}).items() if value]
        file = self.folder / "orders.properties"
        begin = f"driver = sqlite3\nmode = local\nurl = sqlite:///orders.db\n{self.broker.keys}"
        file.write_text(begin + "".join(lines))

    def send(self, *payloads: str, key: str | None = None) -> list[str]:
        with txpool.transaction():
            return [self.outbox.send(each, key=key) for each in payloads]

    def relay(self, *command: str, exits: int = 0) -> str:
        words = command or ("-m", "txpool", "outbox", "run", "--once", "orders.properties")
        done = preloaded.run(*words, cwd=self.folder, env=dict(os.environ))
        assert done.returncode == exits, done.stderr
        return done.stdout + done.stderr

    def apply_all(self) -> list[str]:
        """What a receiver does with all that the broker has, duplicates too."""
        with closing(sqlite3.connect(self.folder / "orders.db")) as connection:
            connection.execute("create table applied (number integer primary key, payload text)")
        for message, payload in self.broker.messages(self.name):
            with txpool.transaction():
                if txpool.once(message, self.folder / "orders.properties"):
                    with txpool.connect(self.folder / "orders.properties") as orders:
                        orders.execute("insert into applied (payload) values (?)", [payload.decode()])
        with closing(sqlite3.connect(self.folder / "orders.db")) as connection:
            return [text for (text,) in connection.execute("select payload from applied order by number")]


@pytest.fixture
def shop(broker: OutboxBroker, tmp_path: Path) -> Iterator[Shop]:
    yield Shop(tmp_path, broker, unique("orders"))
    txpool.DataSource.from_properties(tmp_path / "orders.properties").close()


@pytest.mark.costly
def test_none_is_lost_and_each_is_applied_once(shop: Shop) -> None:
    seed = os.environ.get("TXPOOL_CRASH_SEED") or str(random.randrange(10**6))
    print("seed", seed)
    chance, few = random.Random(seed), shop.broker.name == "jms" and not EVERY  # a JVM for each relay
    texts = [f"n{number}" for number in range(3 if few else 8)]
    ids = shop.send(*texts, key="k")
    killed = 0
    while True:
        last = -1 if few and killed else chance.randrange(len(texts))
        done = preloaded.run("-c", _KILLED, str(last), cwd=shop.folder, env=dict(os.environ))
        if done.returncode == 0:
            break
        assert done.returncode == -9, done.stderr
        killed += 1
        if killed == 1 and (EVERY or shop.broker.name not in SLOW):
            shop.broker.kill()
            shop.broker.start()
    got = shop.broker.messages(shop.name)
    print(f"{killed} kills, {len(got)} messages of {len(ids)}")
    assert killed
    assert {each for each, _ in got} == {*ids}
    assert {*got} == {*zip(ids, (each.encode() for each in texts), strict=True)}
    assert shop.apply_all() == texts
    assert shop.outbox.state().waiting == 0


# Kafka's client looks for a broker for ten seconds, and for JMS a JVM is started.
@pytest.mark.costly
@pytest.mark.parametrize("broker", ["nats", "rabbitmq", *(JAVAS if EVERY else [])], indirect=True)
def test_an_outage_of_the_broker_is_no_fault_of_a_message(shop: Shop) -> None:
    shop.write(attempts=1, broker="127.0.0.1:9")
    (sent,) = shop.send("one", key="k")
    said = shop.relay(exits=TxpoolExitCode.UNREACHABLE)
    assert f"has not confirmed message {sent}" in said
    with closing(sqlite3.connect(shop.folder / "orders.db")) as connection:
        ((attempts, parked, error),) = connection.execute("select attempts, parked, error from txpool_outbox")
    assert (attempts, parked) == (0, 0)
    assert "has not confirmed" in error
    shop.write(attempts=1)
    assert "1 delivered" in shop.relay()
    assert shop.broker.messages(shop.name) == [(sent, b"one")]


@pytest.mark.parametrize("broker", ["nats", "rabbitmq", "kafka"], indirect=True)  # Artemis refuses none
def test_what_the_broker_refuses_is_parked(shop: Shop) -> None:
    if shop.broker.name == "rabbitmq":  # by a routing key that leads nowhere
        shop.write(attempts=1, exchange="amq.direct", to="")
    else:
        shop.write(attempts=1)
    shop.send("x" * 2_000_000, key="k")
    assert "0 delivered" in shop.relay()
    assert shop.outbox.state().parked == 1


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_a_full_queue_of_one_key_holds_up_no_other(shop: Shop) -> None:
    """The command ended at the first message that was not taken."""
    shop.write(attempts=1, exchange="amq.direct", to="")
    full, free = f"{shop.name}-full", f"{shop.name}-free"
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", shop.broker.port)) as connection:
        channel = connection.channel()
        for name, limit in ((full, 0), (free, 9)):
            channel.queue_declare(name, arguments={"x-max-length": limit, "x-overflow": "reject-publish"})
            channel.queue_bind(name, "amq.direct")
        shop.send("1", "2", key=full)
        (sent,) = shop.send("3", key=free)
        assert "1 delivered" in shop.relay()
        state = shop.outbox.state()
        assert (state.waiting, state.parked) == (2, 0)
        assert shop.broker.messages(free) == [(sent, b"3")]
        channel.queue_delete(full)
        channel.queue_delete(free)


@pytest.mark.parametrize("broker", ["nats"], indirect=True)
def test_a_user_without_a_right_is_told_so(shop: Shop, tmp_path: Path) -> None:
    """It waited for half a minute for each message, and said that the answer took too long."""
    made = Nats(tmp_path)
    (tmp_path / "rights").write_text(
        "authorization { users = [ {user: all, password: x}\n"
        '{user: reader, password: x, permissions: {publish: {deny: ">"}}} ] }\n no_auth_user: all\n'
    )
    made.options = ("-c", str(tmp_path / "rights"))
    made.start()
    try:
        made.create(shop.name)
        shop.write(attempts=1, broker=made.address, user="reader", password="x")
        (tmp_path / "orders.properties").chmod(0o600)
        shop.send("one")
        said = shop.relay(exits=TxpoolExitCode.UNREACHABLE)
        assert f'permissions violation for publish to "{shop.name}"' in said
        assert shop.outbox.state().waiting == 1
    finally:
        made.close()


@pytest.mark.parametrize("broker", ["nats"], indirect=True)
def test_what_is_too_large_with_its_headers_is_parked(shop: Shop) -> None:
    """The server ends the connection for it: it was tried for ever, as in an outage, and held up all others."""
    shop.write(attempts=1)
    (first,) = shop.send("first", key="k")
    headers = {"txpool-id": first, "txpool-key": "k", "Nats-Msg-Id": first}
    most = 2**20 - len("NATS/1.0\r\n\r\n") - sum(len(f"{name}: {value}\r\n") for name, value in headers.items())
    shop.send("x" * most, "y" * (most + 1), "z", key="k")
    assert "2 delivered" in shop.relay()
    shop.send("other", key="o")
    assert "1 delivered" in shop.relay()
    assert [len(body) for _, body in shop.broker.messages(shop.name)] == [5, most, 5]
    (parked,) = shop.outbox.parked()
    assert "maximum payload" in str(parked.error)


@pytest.mark.parametrize("broker", ["kafka"], indirect=True)
def test_what_the_topic_takes_is_delivered(shop: Shop) -> None:
    """The limit of kafka-python's own is lower."""
    admin = KafkaAdminClient(bootstrap_servers=shop.broker.address)
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, shop.name, {"max.message.bytes": "5000000"})])
    admin.close()
    shop.write(attempts=1)
    small, large = shop.send("small", "x" * 4_900_000, key="k")
    shop.send("x" * 5_100_000, key="o")
    assert "2 delivered" in shop.relay()
    assert shop.broker.messages(shop.name) == [(small, b"small"), (large, b"x" * 4_900_000)]
    (parked,) = shop.outbox.parked()
    assert "MessageSizeTooLarge" in str(parked.error)


@pytest.mark.parametrize("broker", ["kafka"], indirect=True)
def test_a_session_of_kafkas_has_the_id(shop: Shop) -> None:
    """Whoever receives by a session of txpool's gets the outbox's id as the message's."""
    (sent,) = shop.send("one", key="k")
    shop.relay()
    (shop.folder / "in.properties").write_text(
        f"driver = kafka\nurl = kafka://{shop.broker.address}\ntopic = {shop.name}\ngroup = {shop.name}\n"
        "offsets.datasource = orders.properties\n"
    )
    session = txpool.session(shop.folder / "in.properties")
    with txpool.transaction():
        (found,) = session.receive(timeout=SECONDS)
    assert (found.id, found.key, found.text) == (sent, "k", "one")
    session.close()


@pytest.mark.costly
@pytest.mark.parametrize("broker", ["jms"], indirect=True)
def test_a_session_of_jmss_has_the_id_once_there_is_a_queue(shop: Shop) -> None:
    """And the key, in a header whose name is one of Java's. A queue that is missing is no fault of the message."""
    (sent,) = shop.send("one", key="k")
    shop.write(attempts=1, to="nowhere")
    assert "the broker has no queue nowhere" in shop.relay(exits=TxpoolExitCode.UNREACHABLE)
    shop.write(attempts=1)
    assert "1 delivered" in shop.relay()
    (shop.folder / "in.properties").write_text(
        f"driver = jms\nurl = tcp://{shop.broker.address}\nqueue = {shop.name}\n{shop.broker.keys}"
    )
    session = txpool.session(shop.folder / "in.properties")
    txpool.configure(node_name="shop", log_url=f"sqlite:///{shop.folder}/log", log_create=True)
    with txpool.transaction():
        (found,) = session.receive(timeout=SECONDS)
    assert (found.id, dict(found.headers), found.text) == (sent, {"txpool_key": "k"}, "one")
    session.close()
    txpool.configure()


@pytest.mark.parametrize("broker", ["nats"], indirect=True)
def test_a_connection_that_has_broken_is_opened_again(shop: Shop) -> None:
    """By the same process: the broker has restarted between two messages."""
    from txpool.outbox.relays import delivery_to

    deliver = delivery_to("nats", txpool.DataSource.from_properties(shop.folder / "orders.properties").settings)
    deliver(Message("one", None, "1", 1))
    shop.broker.kill()
    shop.broker.start()
    deliver(Message("two", " a".strip(), b"2", 1))
    with pytest.raises(txpool.DataError, match="spaces"):
        deliver(Message("three", " a", b"3", 1))
    deliver.close()
    assert shop.broker.messages(shop.name) == [("one", b"1"), ("two", b"2")]


def test_a_client_that_is_missing_is_named(tmp_path: Path, python_without: object) -> None:
    file = tmp_path / "orders.properties"
    file.write_text(
        "driver = sqlite3\nmode = local\nurl = sqlite:///orders.db\noutbox.deliver = rabbitmq\noutbox.broker = b\n"
    )
    source = f"from txpool.cli import app; app(['outbox', 'run', '--once', {str(file)!r}])"
    assert "pip install 'txpool[rabbitmq]'" in python_without("pika", source)  # type: ignore[operator]


def test_keys_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "orders.properties"
    words = ["-m", "txpool", "outbox", "run", "--once", "orders.properties"]
    said = []
    for more in ("", "outbox.broker = b\n"):
        file.write_text(f"driver = sqlite3\nmode = local\nurl = sqlite:///o.db\noutbox.deliver = nats\n{more}")
        done = preloaded.run(*words, cwd=tmp_path, env=dict(os.environ))
        assert done.returncode == TxpoolExitCode.CONFIGURATION
        said.append(json.dumps(done.stderr))
    assert "outbox.broker = broker:4222" in said[0]
    assert "outbox.to" in said[1]
