"""What a Spark task asks of its driver: who does not answer is not taken for one who has nothing against it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark import TaskContext

import txpool
from txpool.datasource import DataSource
from txpool.errors import ProgrammingError
from txpool.jobs import driver_query
from txpool.jobs.properties import AMBIENT, NO_JOB

GTRID = "txp1:driver:abcdefghijkl:1"


@contextmanager
def task(told: str, stage: int) -> Iterator[None]:
    """As a worker has it of Spark."""
    context = TaskContext(stageId=stage, partitionId=0, attemptNumber=0, taskAttemptId=0)
    context._localProperties = {AMBIENT: told}
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[DataSource]:
    with DataSource("here", driver="sqlite3", mode="local", url=f"sqlite:///{tmp_path}/here.db") as source:
        yield source


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[driver_query.Responder], str]]:
    """Answers like that, at the address."""
    monkeypatch.setenv(driver_query._VARIABLE, driver_query._KEY)
    opened: list[socket.socket] = []

    def open_one(answer: driver_query.Responder) -> str:
        opened.append(driver_query._open("127.0.0.1", answer))
        return f"127.0.0.1:{opened[-1].getsockname()[1]}"

    yield open_one
    for line in opened:
        line.close()


@pytest.mark.parametrize(
    ("address", "why"), [("127.0.0.1:9", r"does not answer at 127.0.0.1:9 \(UDP\)"), ("", "cannot be asked")]
)
def test_without_an_answer_it_is_refused(source: DataSource, address: str, why: str) -> None:
    with task(f"{GTRID}@{address}", 1):
        for work in (source.connect, txpool.begin, txpool.transaction().__enter__):
            with pytest.raises(ProgrammingError, match=f"tells of {GTRID}, and whether .* {why}.*Nothing was written"):
                work()
        txpool.transactional("not_supported")(source.connect)().close()
        txpool.transactional("requires_new")(source.connect)()
    source.connect().close()
    with task("", 1):
        source.connect().close()


def test_what_the_driver_says(source: DataSource, driver: Callable[[driver_query.Responder], str]) -> None:
    asked: list[tuple[int, list[str]]] = []
    answers: list[list[str] | None] = [[GTRID], [NO_JOB], None, None, []]

    def answer(stage: int, gtrids: list[str]) -> list[str] | None:
        asked.append((stage, gtrids))
        return answers.pop(0)

    with task(f"unsure {GTRID} {GTRID}2@{driver(answer)}", 7):
        with pytest.raises(ProgrammingError, match=f"within {GTRID}, or beside it by one who shares its thread: this"):
            source.connect()
        with pytest.raises(ProgrammingError, match=r"Spark is not at work at that job any more\. Nothing was written"):
            source.connect()
        # Datagrams are lost; and what has been let through once in a stage is not asked for again.
        source.connect().close()
        source.connect().close()
    assert asked == [(7, [GTRID, f"{GTRID}2"])] * 5


def test_nobody_else_answers(
    driver: Callable[[driver_query.Responder], str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who has taken the port knows neither the key nor, beside it, the number; and nobody else is answered."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.bind(("127.0.0.1", 0))

        def serve() -> None:
            request, who = line.recvfrom(4096)
            number = request[32:].decode().split(" ")[0]
            for said in (b"", b"0123456789abcdef", number.encode(), driver_query._signed("another", [number])):
                line.sendto(said, who)
            line.sendto(driver_query._signed(driver_query._KEY, ["0123456789abcdef"]), who)
            line.sendto(driver_query._signed(driver_query._KEY, [number, GTRID]), who)

        thread = threading.Thread(target=serve)
        thread.start()
        assert driver_query.ask(f"127.0.0.1:{line.getsockname()[1]}", 1, [GTRID]) == [GTRID]
        thread.join()
        asked: list[int] = []

        def answer(stage: int, gtrids: list[str]) -> list[str]:
            asked.append(stage)
            return gtrids

        address = driver(answer)
        host, _, port = address.partition(":")
        nobody = driver_query._signed("another", ["0123456789abcdef", "7", GTRID])
        for request in (b"", b"\xff\xff", b"a b c", nobody, driver_query._signed(driver_query._KEY, ["a"])):
            line.sendto(request, (host, int(port)))
    assert driver_query.ask(address, 1, [GTRID]) == [GTRID]
    assert asked == [1]
    assert caplog.messages == []


def test_who_has_read_the_job_property_cannot_say_that_no_transaction_is_open(
    source: DataSource, driver: Callable[[driver_query.Responder], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark writes the property into its event log, and shows it: it has nothing to sign with."""
    address = driver(lambda stage, gtrids: gtrids)
    assert driver_query._KEY not in address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.bind(("127.0.0.1", 0))

        def serve() -> None:
            while True:
                request, who = line.recvfrom(4096)
                if not request:
                    return
                number = request[32:].decode(errors="replace").split(" ")[0]
                for key in ("", address, address.rpartition(":")[2], GTRID):
                    line.sendto(driver_query._signed(key, [number]), who)

        thread = threading.Thread(target=serve)
        thread.start()
        here = line.getsockname()
        monkeypatch.setattr(driver_query, "_REPLY_TIMEOUTS", (0.2,))
        with task(f"{GTRID}@127.0.0.1:{here[1]}", 3), pytest.raises(ProgrammingError, match="does not answer at"):
            source.connect()
        # A worker that has not got the key believes nobody: not even who signs without one.
        monkeypatch.delenv(driver_query._VARIABLE)
        with task(f"{GTRID}@127.0.0.1:{here[1]}", 3), pytest.raises(ProgrammingError, match="does not answer at"):
            source.connect()
        line.sendto(b"", here)
        thread.join()
