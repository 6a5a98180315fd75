"""The broker that a process's tests share, and a site over it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.maven import find_classpath

if TYPE_CHECKING:
    from tests.conftest import Require
    from tests.support.jms.broker import Artemis

_MOST = 40
_numbers = itertools.count()


@pytest.fixture(scope="session")
def artemis(require: Require, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artemis]:
    """A broker, which tests may kill and start again."""
    from tests.support.jms.broker import POM, Artemis

    classpath = find_classpath(POM)
    require(classpath, "Artemis: apt-get install maven default-jdk-headless, which bring it")
    assert classpath is not None
    queues = [f"{prefix}{number}" for number in range(_MOST) for prefix in ("in", "out", "crash.in", "crash.out")]
    broker = Artemis(tmp_path_factory.mktemp("jms"), classpath, queues)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


@pytest.fixture
def queues(artemis: Artemis) -> tuple[str, str]:
    """Two queues, which no other test has."""
    number = next(_numbers)
    return f"in{number}", f"out{number}"


def write_site(folder: Path, broker: Artemis, queues: tuple[str, str], *, trusted: bool = True, tries: int = 2) -> None:
    """Files of a coordinator, of recovery, of two sessions, and of a SQLite file."""
    owners = "prepared.owners = any\n" if trusted else ""
    (folder / "txpool.properties").write_text("node.name = n1\nlog.url = sqlite:///txlog\nlog.create = true\n")
    (folder / "recovery.properties").write_text(
        "node.name = n1\nlog.url = sqlite:///txlog\nrecovery.backoff = 0\n"
        "datasources = orders.properties, in.properties, out.properties\n"
    )
    (folder / "orders.properties").write_text(
        "name = orders\ndriver = sqlite3\nmode = cmr\nurl = sqlite:///orders.db\n"
    )
    for name, queue in zip(("in", "out"), queues, strict=True):
        (folder / f"{name}.properties").write_text(
            f"name = {name}\ndriver = jms\nurl = {broker.url}\nqueue = {queue}\nparking.after = {tries}\n"
            f"jdbc.classpath = {broker.classpath}\n{owners}"
        )
