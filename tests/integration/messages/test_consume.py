"""The command `txpool consume`, over a queue in a SQLite file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.support import preloaded
from tests.support.waiting import until
from txpool.commands.running import stopped_by_signals
from txpool.messages import MessageSession, ReceivedMessage
from txpool.process.exit_codes import TxpoolExitCode

_SHOP = """
import txpool

@txpool.consumer("queue.properties", poll=0.1)
def ship(messages):
    with open("shipped", "a") as file:
        for message in messages:
            print(message.text, file=file)
    if messages[0].text == "bad":
        raise ValueError("it is bad")

def no_consumer(messages):
    pass

class Shop:
    @txpool.consumer("queue.properties")
    @staticmethod
    def ship(messages):
        pass
"""


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MessageSession:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.properties").write_text("driver = sqlite3\nmode = local\nurl = sqlite:///orders.db\n")
    (tmp_path / "queue.properties").write_text(
        "driver = sql-queue\nqueue = q\nqueue.datasource = orders.properties\nparking.after = 1\n"
    )
    (tmp_path / "shop.py").write_text(_SHOP)
    return txpool.session(tmp_path / "queue.properties")


def run(*words: str, exits: int = 0) -> str:
    done = preloaded.run("-m", "txpool", "consume", *words, cwd=Path.cwd(), env=dict(os.environ))
    assert done.returncode == exits, done.stderr
    return done.stdout + done.stderr


def test_what_is_in_the_queue_and_no_more(session: MessageSession) -> None:
    for text in ("one", "bad", "two"):
        session.send(text)
    said = run("shop:ship", "--once")
    assert said.startswith("2 done\n")
    assert "is parked in queue-parked: ValueError: it is bad" in said
    assert Path("shipped").read_text().split() == ["one", "bad", "two"]
    assert session.parked()[0] == 1


def test_it_ends_after_the_batch(session: MessageSession) -> None:
    loop = preloaded.start("-m", "txpool", "consume", "shop:ship", cwd=Path.cwd(), env=dict(os.environ))
    session.send("one")
    until(lambda: Path("shipped").exists() and Path("shipped").read_text() == "one\n")
    loop.send_signal(signal.SIGTERM)
    out, said = loop.communicate(timeout=600)
    assert (loop.returncode, out) == (0, "1 done\n"), said


def test_what_is_wrong_in_a_file_is_no_messages_fault(session: MessageSession) -> None:
    """Its function names a file that is missing: all that came was parked. It ends, as without its session's file."""
    with open("shop.py", "a") as file:
        file.write("""
@txpool.consumer("queue.properties", poll=0.1)
def lacks(messages):
    txpool.connect("missing.properties")
""")
    session.send("one")
    assert "missing.properties" in run("shop:lacks", "--once", exits=TxpoolExitCode.CONFIGURATION)
    assert session.parked()[0] == 0
    assert run("shop:ship", "--once").startswith("1 done\n")


def test_the_working_folder_comes_last(session: MessageSession) -> None:
    Path("uuid.py").write_text("raise SystemExit('the working folder comes first')")
    command = [sys.executable, "-P", "-m", "txpool", "consume", "shop:ship", "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "0 done\n"), done.stderr


def test_one_within_a_class(session: MessageSession) -> None:
    session.send("one")
    assert run("shop:Shop.ship", "--once").startswith("1 done\n")


def test_what_is_no_consumer(session: MessageSession) -> None:
    assert "is no consumer" in run("shop:no_consumer", exits=TxpoolExitCode.CONFIGURATION)
    assert "cannot be loaded" in run("shop:missing", exits=TxpoolExitCode.CONFIGURATION)


def test_check_knows_it(session: MessageSession) -> None:
    done = preloaded.run("-m", "txpool", "check", "queue.properties", cwd=Path.cwd(), env=dict(os.environ))
    assert "is a queue in" in done.stdout


def test_a_consumer_that_would_do_nothing_takes_nothing(session: MessageSession) -> None:
    """A call of it only makes a coroutine, or a generator: the messages would be gone, and nothing of them done."""

    async def coroutine(messages: list[ReceivedMessage]) -> None:
        raise AssertionError

    def generator(messages: list[ReceivedMessage]) -> Iterator[None]:
        yield

    session.send("one")
    for function in (coroutine, generator):
        with pytest.raises(txpool.ProgrammingError, match=f"{function.__name__}.* would do nothing, and count as done"):
            txpool.consumer(session)(function)

    def hidden(messages: list[ReceivedMessage]) -> object:
        return coroutine(messages)

    assert txpool.consumer(session)(hidden).run(once=True) == 0
    assert session.parked()[0] == 1


class Shop:
    def ship(self, messages: list[ReceivedMessage]) -> None: ...


@pytest.mark.parametrize("function", [Shop.ship, classmethod(Shop.ship), None, lambda: None])
def test_what_takes_no_batch_is_no_consumer(session: MessageSession, function: Any) -> None:
    """Each call of it would fail, and each message be parked for that."""
    with pytest.raises(txpool.ProgrammingError, match="cannot be called with a list of messages"):
        txpool.consumer(session)(function)


def test_a_consumer_may_be_a_method_or_built_in(session: MessageSession) -> None:
    for function in (Shop().ship, staticmethod(len), type):
        session.send("one")
        assert txpool.consumer(session)(function).run(once=True) == 1


def test_annotations_for_type_checkers_alone_do_no_harm(session: MessageSession) -> None:
    """From Python 3.14 on they are evaluated once somebody asks for the signature, and name what is not there."""

    class Annotated:
        @property
        def __signature__(self) -> Any:
            raise NameError("name 'ReceivedMessage' is not defined")

        def __call__(self, messages: list[ReceivedMessage]) -> None: ...

    session.send("one")
    assert txpool.consumer(session)(Annotated()).run(once=True) == 1


def test_a_consumer_without_a_session_is_told_what_to_write() -> None:
    with pytest.raises(txpool.ProgrammingError, match=r"@txpool.consumer\(session\)"):
        txpool.consumer(Shop().ship)  # type: ignore[arg-type]


def test_a_consumer_has_transactions_of_its_own(session: MessageSession) -> None:
    """Within another one, each batch would be done once that commits, and be counted before."""
    session.send("one")
    loop = txpool.consumer(session)(lambda _: None)
    with txpool.transaction() as ambient, pytest.raises(txpool.ProgrammingError, match="within"):
        ambient.may_be_empty = True
        loop.run(once=True)
    assert loop.run(once=True) == 1


def test_a_second_signal_of_the_other_kind_rolls_back_too() -> None:
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    try:
        stopped = stopped_by_signals()
        signal.raise_signal(signal.SIGTERM)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)
