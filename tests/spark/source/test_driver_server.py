"""The driver's server: what Spark's processes ask the driver's own process."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from txpool.errors import OperationalError, TransactionInDoubt
from txpool.spark.source.driver_server import DriverServer, ask_driver


def answer(request: Any) -> Any:
    if isinstance(request, Exception):
        request.add_note("and what is to be done")
        raise request
    return request, os.getpid()


def test_answers_and_errors_come_back() -> None:
    server = DriverServer(answer)
    assert ask_driver(server.address, ["all", 1]) == (["all", 1], os.getpid())
    errors: list[Exception] = [
        psycopg.errors.UniqueViolation("twice"),
        TransactionInDoubt("nobody knows", gtrid="txp1:a:b:c", datasource="one"),
    ]
    for error in errors:
        with pytest.raises(type(error), match=str(error)) as caught:
            ask_driver(server.address, error)
        assert caught.value.__notes__ == ["and what is to be done"]


def test_what_cannot_travel_comes_as_text() -> None:
    class Local(Exception):
        pass

    def fail(_: object) -> None:
        raise Local("only here")

    with pytest.raises(OperationalError, match="Local: only here"):
        ask_driver(DriverServer(fail).address, None)


def test_many_ask_at_once() -> None:
    meeting = threading.Barrier(8)
    server = DriverServer(lambda request: (meeting.wait(60), request)[1])
    replies: list[int] = []
    threads = [threading.Thread(target=lambda n=n: replies.append(ask_driver(server.address, n))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(replies) == list(range(8))


def test_nobody_else_can_enter_and_nothing_is_left() -> None:
    source = (
        "import sys; from txpool.spark.source.driver_server import DriverServer\n"
        "print(DriverServer(print).address, flush=True); sys.stdin.read()"
    )
    driver = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    address = Path(driver.stdout.readline().strip())
    assert stat.S_IMODE(address.parent.stat().st_mode) == 0o700
    driver.communicate("", timeout=600)
    assert not address.parent.exists()
    with pytest.raises(OperationalError, match="the driver's process does not answer"):
        ask_driver(str(address), 1)


def test_a_forked_child_leaves_it_to_its_parent() -> None:
    source = """
import os
from txpool.spark.source.driver_server import DriverServer, ask_driver

server = DriverServer(lambda request: os.getpid())
child = os.fork()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print(ask_driver(server.address, None) == os.getpid())
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
