"""The arguments of every client of kafka-python's, and what one leaves that has reached no broker."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path
from unittest.mock import MagicMock

import pytest

import txpool
from tests.support.ports import free_ports
from txpool.config.settings import DataSourceSettings
from txpool.resources.kafka.manager import MANAGER

REACHES_NOBODY = """
import sys, threading
import txpool
from txpool.resources.kafka.manager import MANAGER
session = txpool.session(sys.argv[1])
before = threading.active_count()
for work in (lambda: session.wait(1), lambda: MANAGER.requests_of(session.source).cluster()):
    try:
        work()
    except txpool.OperationalError as error:
        print(error)
session.close()
print(threading.active_count() - before, "threads")
"""


@pytest.mark.parametrize(("line", "expected"), [("", 1000), ("driver.reconnect_backoff_max_ms = 5000\n", 5000)])
def test_a_broker_that_is_back_is_reached_before_a_prepare_gives_up(line: str, expected: int, tmp_path: Path) -> None:
    """By its own default kafka-python may wait for half a minute, which is longer than a PREPARE tries it."""
    file = tmp_path / "orders.properties"
    file.write_text(f"driver = kafka\nurl = kafka://broker\ntopic = orders\n{line}")
    assert MANAGER.options(DataSourceSettings.load(file))["reconnect_backoff_max_ms"] == expected


def test_an_argument_that_the_client_has_not_is_an_error(tmp_path: Path) -> None:
    """Who sends with a wrong spelling of security_protocol would do so in plain text."""
    file = tmp_path / "orders.properties"
    file.write_text("driver = kafka\nurl = kafka://broker\ntopic = orders\ndriver.secruity_protocol = SSL\n")
    with (
        closing(txpool.session(file)) as session,
        pytest.raises(txpool.ConfigurationError, match=r"driver\.secruity_protocol"),
    ):
        MANAGER.requests_of(session.source)


def test_who_has_no_decision_log_is_told_how_to_get_one(tmp_path: Path) -> None:
    file = tmp_path / "orders.properties"
    file.write_text("driver = kafka\nurl = kafka://broker\ntopic = orders\n")
    with closing(txpool.session(file)) as session, pytest.raises(txpool.ProgrammingError, match=r"log\.create = true"):
        session.send("one")


def test_who_reaches_no_broker_leaves_no_thread(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    file = tmp_path / "orders.properties"
    file.write_text(
        f"driver = kafka\nurl = kafka://127.0.0.1:{port}\ntopic = orders\ngroup = shop\n"
        "driver.bootstrap_timeout_ms = 10\n"
    )
    # In a process of its own: kafka-python closes no socket whose connect has failed.
    done = subprocess.run([sys.executable, "-c", REACHES_NOBODY, file], capture_output=True, text=True, check=True)
    *errors, left = done.stdout.splitlines()
    assert [f"no broker at 127.0.0.1:{port} answers" in each for each in errors] == [True, True]
    assert left == "0 threads"


@pytest.mark.parametrize(("error", "raised"), [(KeyboardInterrupt,) * 2, (OSError, txpool.OperationalError)])
def test_a_consumer_whose_close_fails_is_left_all_the_same(
    error: type[BaseException], raised: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kafka-python's is closed from its first step on: each poll of it would fail."""
    file = tmp_path / "orders.properties"
    file.write_text(
        "driver = kafka\nurl = kafka://broker\ntopic = orders\ngroup = shop\noffsets.datasource = db.properties\n"
    )
    (tmp_path / "db.properties").write_text("name = db\ndriver = sqlite3\nmode = cmr\nurl = sqlite:///db\n")
    stuck, other = MagicMock(), MagicMock()
    stuck._coordinator.coordinator.return_value = None
    stuck.close.side_effect = error
    other.poll.side_effect = BufferError
    consumers = [stuck, other]
    monkeypatch.setattr(MANAGER, "consumer", lambda *_, **__: consumers.pop(0))
    monkeypatch.setattr("txpool.messages.kafka_received._LONGEST_LOOKUP", -1.0)
    with closing(txpool.session(file)) as session:
        with pytest.raises(raised):
            session.wait(0)
        with pytest.raises(BufferError):
            session.wait(0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_what_fails_to_close_keeps_nothing_else_open(error: type[BaseException], tmp_path: Path) -> None:
    """A consumer would stay in its group, and keep its partitions from others."""
    file = tmp_path / "orders.properties"
    file.write_text("driver = kafka\nurl = kafka://broker\ntopic = orders\n")
    closed: list[object] = []

    def fail(made: object) -> None:
        closed.append(made)
        raise error

    source = txpool.session(file).source
    first, last = source.kept("first", object, closed.append), source.kept("last", object, fail)
    with pytest.raises(error):
        source.close()
    assert closed == [last, first]
    assert source.kept("first", object) is not first
    assert source.kept("last", object) is not last
