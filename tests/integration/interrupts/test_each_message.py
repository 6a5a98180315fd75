"""An interrupt at each message that PyMySQL sends in a block's life: before it is sent, and behind that.

PyMySQL sends by functions of its own, at whose beginning an interrupt may come as well: these are no places of ours.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.integration.interrupts.worlds import World, world_of
from txpool.resources.jdbc.session import XaConnection
from txpool.resources.mysql.pymysql.reading import ReadingConnection

#: Seconds in which one transaction has ended. Without the rule it waits for ever.
PATIENCE = 60


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt."""


class TimeLimit(Exception):
    """Stands for Celery's SoftTimeLimitExceeded."""


@pytest.fixture(params=["pymysql", "pymysql alone"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_of(request.param, request, tmp_path) as world:
        yield world


@pytest.fixture(autouse=True)
def waited() -> Iterator[list[str]]:
    """What has waited for ever, until the alarm."""
    found: list[str] = []

    def fail(_: int, frame: object) -> None:
        found.append(str(frame))
        raise Interrupt

    former = signal.signal(signal.SIGALRM, fail)
    yield found
    signal.alarm(0)
    signal.signal(signal.SIGALRM, former)


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("fails", [False, True], ids=["commit", "rollback"])
def test_at_each_message(
    world: World, fails: bool, behind: bool, waited: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = ReadingConnection._write_bytes, -1

    def strike(connection: Any, message: bytes) -> None:
        nonlocal left
        left -= 1
        if behind or left != 0:
            write(connection, message)
        if left == 0:
            raise Interrupt

    monkeypatch.setattr(ReadingConnection, "_write_bytes", strike)
    world.work(fails=False)
    for nth in itertools.count(1):
        told: BaseException | None = None
        left = nth
        signal.alarm(PATIENCE)
        try:
            world.work(fails=fails)
        except (Interrupt, ZeroDivisionError, txpool.Error) as error:
            told = error
        signal.alarm(0)
        assert waited == [], nth
        struck, left = left <= 0, -1
        if told is not None:
            told.__traceback__ = told.__context__ = told.__cause__ = None
        committed = world.check(told, (nth, told))
        if not struck:
            assert committed is not fails
            break
    world.every_pool_has_its_size()
    assert nth > 3


def test_what_takes_an_answer_over_jdbc_away_is_no_refusal(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has prepared by then: what a signal's handler raises says nothing of that."""
    told: BaseException | None = None
    with world_of("jdbc", request, tmp_path) as world:
        world.work(fails=False)
        run = XaConnection.run

        def strike(raw: Any, statement: str, *arguments: Any) -> Any:
            answer = run(raw, statement, *arguments)
            if "prepare transaction" in statement:
                raise TimeLimit
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(XaConnection, "run", strike)
            try:
                world.work(fails=False)
            except txpool.Error as error:
                told = error
        assert told is not None
        told.__traceback__ = told.__context__ = told.__cause__ = None
        assert not world.check(told, told)
