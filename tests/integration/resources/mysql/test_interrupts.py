"""A KeyboardInterrupt between any two lines of the driver, or of its resource manager, leaves no half a transaction."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

import txpool
from recovery import RecoveryManager
from tests.support.mysql import MySQLServer

if TYPE_CHECKING:
    from tests.support.mysql import RequireDriver

PASSWORD = "TXPOOL_TEST_MYSQL_INTERRUPTED"  # the name of a variable
#: Every so many lines; a prime, so that over the drivers and the servers the lines differ.
STEP = 7
_TRACED = ("txpool/resources/mysql/", "/pymysql/", "/MySQLdb/")


class Interrupts:
    """Raises a KeyboardInterrupt at a line of the traced files, counted from the start of its block."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.lines = 0

    def __enter__(self) -> Interrupts:
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        # A finaliser's exceptions are printed, and change nothing.
        traced = any(each in frame.f_code.co_filename for each in _TRACED) and frame.f_code.co_name != "__del__"
        return self._line if traced else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.lines += 1
            if self.lines == self._at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._line


@pytest.fixture(params=["pymysql", "mysqlclient"])
def recovery(
    server: MySQLServer,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    require_driver: RequireDriver,
) -> Iterator[RecoveryManager]:
    require_driver(request.param)
    monkeypatch.setenv(PASSWORD, server.password)
    for name in ("one", "two"):
        server.execute("create table work (id int primary key)", database=name)
        text = f"driver = {request.param}\nurl = {server.url(name)}\npassword = ${{env:{PASSWORD}}}\n"
        (tmp_path / f"{name}.properties").write_text(text)
    log = f"node.name = tests\nlog.url = sqlite:///{tmp_path}/log\nlog.create = true\n"
    (tmp_path / "txpool.properties").write_text(log)
    conf = tmp_path / "recovery.properties"
    conf.write_text(f"{log}recovery.backoff = 0\ndatasources = one.properties, two.properties\n")
    txpool.configure(tmp_path / "txpool.properties")
    sources = [txpool.DataSource.from_properties(tmp_path / f"{name}.properties") for name in ("one", "two")]
    try:
        yield RecoveryManager(conf)
    finally:
        for source in sources:
            source.close()
        txpool.configure()


@pytest.mark.slow
# PyMySQL's connect(), interrupted, leaves its socket to the collector.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.filterwarnings("ignore:.*socket.socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("rolls_back", [False, True])
def test_an_interrupt_anywhere(
    server: MySQLServer, recovery: RecoveryManager, tmp_path: Path, rolls_back: bool
) -> None:
    def work(number: int, at: int) -> tuple[str, int]:
        said = "committed"
        interrupts = Interrupts(at)
        try:
            with interrupts, txpool.transaction():
                for name in ("one", "two"):
                    cursor = txpool.connect(tmp_path / f"{name}.properties").cursor()
                    cursor.execute(f"insert into work values ({number})")
                if rolls_back:
                    raise ZeroDivisionError
        except txpool.TransactionInDoubt:
            said = "in doubt"
        except KeyboardInterrupt:
            said = "interrupted"
        except Exception:
            said = "rolled back"
        return said, interrupts.lines

    work(0, 0)
    _, lines = work(1, 0)
    heard = {number: work(number, at)[0] for number, at in enumerate(range(1, lines, STEP), 2)}
    assert len(heard) > 20
    assert "interrupted" in heard.values()
    for _ in range(5):
        with suppress(Exception):
            recovery.scan()
    assert server.prepared() == []
    found = [{number for (number,) in server.execute("select id from work", database=name)} for name in ("one", "two")]
    assert found[0] == found[1], "a transaction is in one database, and not in the other"
    for number, said in heard.items():
        if said in ("committed", "rolled back"):
            assert (number in found[0]) is (said == "committed")
