"""Messages a second through Kafka, beside kafka-python alone in its own transactions of the same sizes.

python tests/benchmarks/bench_messages.py [ROUNDS]
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, chdir, closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from kafka import KafkaProducer

import txpool
from tests.benchmarks.report import compare
from tests.support.kafka.broker import Broker, find_classpath
from tests.support.kafka.fixtures import write_site

#: How many messages a transaction has, and how many transactions a round.
SIZES = ((1, 50), (100, 10))
BODY = b"x" * 100


def _rate(messages: int, work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return messages / (time.perf_counter() - started)


def _alone(producer: Any, size: int, transactions: int) -> None:
    for _ in range(transactions):
        producer.begin_transaction()
        for _ in range(size):
            producer.send("out", BODY)
        producer.commit_transaction()


def _sends(size: int, transactions: int) -> None:
    out = txpool.session("out.properties")
    for _ in range(transactions):
        with txpool.transaction():
            for _ in range(size):
                out.send(BODY)


def _passes_on(size: int, transactions: int) -> None:
    inward, out = txpool.session("in.properties"), txpool.session("out.properties")
    left = size * transactions
    while left:
        with txpool.transaction() as ambient:
            ambient.may_be_empty = True
            for message in inward.receive(min(size, left), timeout=1):
                out.send(message.body)
                left -= 1


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    classpath = find_classpath()
    assert classpath is not None, "Kafka: apt-get install maven default-jdk-headless"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = Broker(folder, classpath)
        stack.callback(broker.close)
        broker.start()
        broker.create_topics("in", "out")
        write_site(folder, broker, ("in", "out"))
        txpool.configure(folder / "txpool.properties")
        stack.callback(txpool.configure)
        with closing(sqlite3.connect(folder / "orders.db")) as file:
            file.execute("pragma journal_mode = wal")
        orders = stack.enter_context(closing(txpool.DataSource.from_properties(folder / "orders.properties")))
        orders.xids_table().create()
        stack.enter_context(chdir(folder))
        producer = stack.enter_context(
            closing(KafkaProducer(bootstrap_servers=broker.address, transactional_id="alone"))
        )
        producer.init_transactions()
        for size, transactions in SIZES:
            count = size * transactions

            def filled(size: int = size, transactions: int = transactions, count: int = count) -> float:
                inward = txpool.session("in.properties")
                with txpool.transaction():
                    for _ in range(count):
                        inward.send(BODY)
                return _rate(count, lambda: _passes_on(size, transactions))

            compare(
                f"transactions of {size}",
                {
                    "kafka-python alone": lambda s=size, t=transactions: _rate(s * t, lambda: _alone(producer, s, t)),  # type: ignore[misc]
                    "txpool, sent": lambda s=size, t=transactions: _rate(s * t, lambda: _sends(s, t)),  # type: ignore[misc]
                    "txpool, received and sent": filled,
                },
                rounds=rounds,
                unit="messages/s",
                transactions=transactions,
                servers=[broker],  # type: ignore[list-item]
            )
        for name in ("in", "out"):
            txpool.session(f"{name}.properties").close()


if __name__ == "__main__":
    main()
