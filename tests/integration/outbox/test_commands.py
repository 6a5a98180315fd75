"""The commands `txpool outbox …`, over a SQLite file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

import txpool
from tests.support import preloaded
from tests.support.waiting import until
from txpool.process.exit_codes import TxpoolExitCode

_SHOP = """
from pathlib import Path

def deliver(message):
    with open("delivered", "a") as file:
        print(message.payload, file=file)
    if message.payload == "bad":
        raise ValueError("it is\\nbad")
"""


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path / "orders.properties"
        self.write("outbox.deliver = shop:deliver\noutbox.attempts = 1\noutbox.poll = 10ms\n")
        (path / "shop.py").write_text(_SHOP)

    def write(self, more: str) -> None:
        self.file.write_text(f"driver = sqlite3\nmode = local\nurl = sqlite:///orders.db\n{more}")
        self.file.chmod(0o600)

    @property
    def _env(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(self.path)}

    def run(self, *words: str, exits: int = 0) -> subprocess.CompletedProcess[str]:
        command, *more = words
        done = preloaded.run(
            "-m", "txpool", "outbox", command, "orders.properties", *more, cwd=self.path, env=self._env
        )
        assert done.returncode == exits, done.stderr
        return done

    def relay(self) -> preloaded.Process:
        return preloaded.start("-m", "txpool", "outbox", "run", "orders.properties", cwd=self.path, env=self._env)

    def send(self, *payloads: str) -> list[str]:
        with txpool.DataSource.from_properties(self.file) as source, txpool.transaction():
            return [txpool.Outbox(source).send(each, key="k") for each in payloads]

    def delivered(self) -> list[str]:
        file = self.path / "delivered"
        return file.read_text().split() if file.exists() else []


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_what_an_operator_does(folder: Folder) -> None:
    assert "orders has no outbox" in folder.run("list", exits=TxpoolExitCode.WRONG).stderr
    assert folder.run("init").stdout == folder.run("init").stdout == "orders has an outbox\n"
    _, bad, _ = folder.send("one", "bad", "two")
    assert folder.run("run", "--once").stdout == "1 delivered\n"
    assert f"parked: {bad}, key k, 1 attempts: ValueError: it is bad\n" in folder.run("list").stdout
    listed = json.loads(folder.run("list", "--json").stdout)
    assert (listed["waiting"], listed["parked"], [each["id"] for each in listed["messages"]]) == (1, 1, [bad])
    assert folder.run("retry", bad, "other", exits=TxpoolExitCode.NOT_FOUND).stderr == "other is not parked\n"
    folder.run("retry", exits=TxpoolExitCode.USAGE)
    assert json.loads(folder.run("list", "--json").stdout)["parked"] == 0
    assert folder.delivered() == ["one", "bad"]


def test_a_relay_ends_after_the_message_in_delivery(folder: Folder) -> None:
    folder.run("init")
    relay = folder.relay()
    for number, each in enumerate(("one", "two"), 1):
        folder.send(each)
        until(lambda number=number: len(folder.delivered()) == number)  # type: ignore[misc]
    relay.send_signal(signal.SIGTERM)
    _, said = relay.communicate(timeout=600)
    assert relay.returncode == 0, said
    assert "outbox of orders: messages are delivered" in said
    assert folder.delivered() == ["one", "two"]


def test_of_two_relays_of_a_file_one_waits(folder: Folder) -> None:
    folder.run("init")
    first = folder.relay()
    folder.send("one")
    until(lambda: folder.delivered() == ["one"])
    second = folder.relay()
    assert "another relay delivers, and this one waits" in second.stderr.readline()
    first.kill()
    first.communicate()
    folder.send("two")
    until(lambda: folder.delivered() == ["one", "two"])
    second.terminate()
    second.communicate(timeout=600)
    assert second.returncode == 0


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("", "outbox.deliver is missing: write outbox.deliver = package.module:function"),
        ("outbox.deliver = shop:nothing", "cannot be loaded (AttributeError"),
        ("outbox.deliver = nobody.has:this", "cannot be loaded (ModuleNotFoundError"),
        ("outbox.deliver = shop", "package.module:function"),
    ],
)
def test_a_file_that_is_wrong(folder: Folder, key: str, says: str) -> None:
    folder.run("init")
    folder.write(key)
    assert says in folder.run("run", "--once", exits=TxpoolExitCode.CONFIGURATION).stderr


def test_a_file_that_others_may_write_names_no_code(folder: Folder) -> None:
    folder.file.chmod(0o666)
    assert "it names code to run" in folder.run("run", "--once", exits=TxpoolExitCode.CONFIGURATION).stderr
