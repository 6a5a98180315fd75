"""Artemis for tests: the broker that a run shares, one of a process's own, and a site over either."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.maven import find_classpath
from tests.support.message_site import write_files
from tests.support.shared import node_of, own, shared, unique

if TYPE_CHECKING:
    from tests.conftest import Require
    from tests.support.jms.broker import Artemis


@pytest.fixture(scope="session")
def artemis_classpath(require: Require) -> str:
    from tests.support.jms.broker import POM

    classpath = find_classpath(POM)
    require(classpath, "Artemis: apt-get install maven default-jdk-headless, which bring it")
    assert classpath is not None
    return classpath


@pytest.fixture(scope="session")
def artemis(artemis_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artemis]:
    """The broker that all tests of the run share."""
    from tests.support.jms.broker import Artemis

    with shared(tmp_path_factory, Artemis, artemis_classpath) as broker:
        yield broker


@pytest.fixture(scope="session")
def own_artemis(artemis_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artemis]:
    """A broker of this process's, which its tests may kill and start again."""
    from tests.support.jms.broker import Artemis

    with own(tmp_path_factory, Artemis, artemis_classpath) as broker:
        yield broker


def create_queues(broker: Artemis, *, prefix: str = "") -> tuple[str, str]:
    """Two queues, which no other test has."""
    names = unique(f"{prefix}in"), unique(f"{prefix}out")
    broker.create_queues(*names)
    return names


def write_site(folder: Path, broker: Artemis, queues: tuple[str, str], *, trusted: bool = True, tries: int = 2) -> None:
    """Files of a coordinator, of recovery, of two sessions, and of a SQLite file."""
    sessions = {
        name: f"driver = jms\nurl = {broker.url}\nqueue = {queue}\nparking.after = {tries}\n"
        f"jdbc.classpath = {broker.classpath}\n"
        for name, queue in zip(("in", "out"), queues, strict=True)
    }
    write_files(folder, node_of(queues), sessions, trusted=trusted)
