"""Kafka for tests: the broker that a run shares, one of a process's own, and a site over either."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.left_open import close_all
from tests.support.message_site import write_files
from tests.support.shared import node_of, own, shared, unique

if TYPE_CHECKING:
    from tests.conftest import Require
    from tests.support.kafka.broker import Broker

PARKING = "parking.after = 2\n"


@pytest.fixture(scope="session")
def kafka_classpath(require: Require) -> str:
    from tests.support.kafka.broker import find_classpath

    classpath = find_classpath()
    require(classpath, "Kafka: apt-get install maven default-jdk-headless, which bring it")
    assert classpath is not None
    return classpath


@pytest.fixture(scope="session")
def kafka(kafka_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker that all tests of the run share."""
    from tests.support.kafka.broker import Broker

    with shared(tmp_path_factory, Broker, kafka_classpath) as broker:
        yield broker
        close_all()


@pytest.fixture(scope="session")
def own_kafka(kafka_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of this process's, which its tests may kill and start again."""
    from tests.support.kafka.broker import Broker

    with own(tmp_path_factory, Broker, kafka_classpath) as broker:
        yield broker


def create_topics(broker: Broker) -> tuple[str, str]:
    """Two topics of one partition each, which no other test has."""
    names = unique("in"), unique("out")
    broker.create_topics(*names)
    return names


@pytest.fixture
def topics(kafka: Broker) -> tuple[str, str]:
    """Those of the shared broker."""
    return create_topics(kafka)


def write_site(folder: Path, broker: Broker, topics: tuple[str, str], *, trusted: bool = True, more: str = "") -> None:
    """Files of a coordinator, of recovery, of two sessions, and of a SQLite file that keeps positions."""
    sessions = {
        name: f"driver = kafka\nurl = {broker.url}\ntopic = {topic}\ngroup = shop-{topic}\n"
        f"offsets.datasource = orders.properties\ndriver.group_instance_id = one\n{more or PARKING}"
        for name, topic in zip(("in", "out"), topics, strict=True)
    }
    write_files(folder, node_of(topics), sessions, trusted=trusted)
