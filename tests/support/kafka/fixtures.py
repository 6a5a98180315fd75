"""The broker that a process's tests share, and a site over it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.left_open import close_all

if TYPE_CHECKING:
    from tests.conftest import Require
    from tests.support.kafka.broker import Broker

PARKING = "parking.after = 2\n"
_numbers = itertools.count()


@pytest.fixture(scope="session")
def kafka(require: Require, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker, which tests may kill and start again."""
    from tests.support.kafka.broker import Broker, find_classpath

    classpath = find_classpath()
    require(classpath, "Kafka: apt-get install maven default-jdk-headless, which bring it")
    assert classpath is not None
    broker = Broker(tmp_path_factory.mktemp("kafka"), classpath)
    try:
        broker.start()
        yield broker
        close_all()
    finally:
        broker.kill()


@pytest.fixture
def topics(kafka: Broker) -> tuple[str, str]:
    """Two topics of one partition each, which no other test has."""
    number = next(_numbers)
    names = f"in{number}", f"out{number}"
    kafka.create_topics(*names)
    return names


def write_site(folder: Path, broker: Broker, topics: tuple[str, str], *, trusted: bool = True, more: str = "") -> None:
    """Files of a coordinator, of recovery, of two sessions, and of a SQLite file that keeps positions."""
    owners = "prepared.owners = any\n" if trusted else ""
    (folder / "txpool.properties").write_text("node.name = n1\nlog.url = sqlite:///txlog\nlog.create = true\n")
    (folder / "recovery.properties").write_text(
        "node.name = n1\nlog.url = sqlite:///txlog\nrecovery.backoff = 0\n"
        "datasources = orders.properties, in.properties, out.properties\n"
    )
    (folder / "orders.properties").write_text(
        "name = orders\ndriver = sqlite3\nmode = cmr\nurl = sqlite:///orders.db\n"
    )
    for name, topic in zip(("in", "out"), topics, strict=True):
        (folder / f"{name}.properties").write_text(
            f"name = {name}\ndriver = kafka\nurl = {broker.url}\ntopic = {topic}\ngroup = shop-{topic}\n"
            f"offsets.datasource = orders.properties\n{owners}{more or PARKING}"
            "driver.group_instance_id = one\n"
        )
