"""`txpool pool …` acts on the pools of running processes."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.integration.control.processes import PROLOGUE, Start, asked, command, listed, sockets
from tests.support.children import children, said, tell
from tests.support.waiting import until
from txpool.control import folder as folders
from txpool.control.client import ask
from txpool.control.messages import LONGEST_REQUEST, Request
from txpool.pool import PoolStatistics
from txpool.process.exit_codes import TxpoolExitCode


def test_list_shows_the_pools_of_every_process(conf: Path, start: Start) -> None:
    _, one = start()
    child, two = start("ledger")
    assert asked(child, "take", "1") == ["taken"]
    found = {answer["pid"]: answer for answer in listed(conf)}
    assert found.keys() == {one, two}
    (pool,) = found[two]["pools"]
    assert pool.keys() == set(PoolStatistics.__dataclass_fields__)
    assert (pool["name"], pool["taken"], pool["max_size"]) == ("ledger", 1, 3)
    result = command(conf, "list")
    assert result.exit_code == TxpoolExitCode.OK
    assert all(word in result.stdout for word in ("orders", "ledger", str(one), str(two)))
    assert [answer["pid"] for answer in listed(conf, "--pid", str(one))] == [one]


def test_resize_flush_suspend_and_resume(conf: Path, start: Start) -> None:
    child, _ = start()
    other, _ = start("ledger")
    assert command(conf, "resize", "orders", "--max-size", "7").exit_code == TxpoolExitCode.OK
    assert asked(child, "numbers") == ["0", "7", "0", "0", "False"]
    assert asked(other, "numbers") == ["0", "3", "0", "0", "False"]
    asked(child, "take", "1")
    asked(child, "take", "1")
    asked(child, "give")
    assert command(conf, "flush", "orders", "--how", "idle").exit_code == TxpoolExitCode.OK
    assert asked(child, "numbers")[2:4] == ["1", "0"]
    assert command(conf, "flush", "orders").exit_code == TxpoolExitCode.OK
    asked(child, "give")
    assert asked(child, "numbers")[2] == "0", "by default, what was taken is closed when it comes back"
    result = command(conf, "suspend", "orders")
    assert result.exit_code == TxpoolExitCode.OK
    assert "suspended" in result.stdout
    assert asked(child, "take", "0.05") == ["timeout"]
    assert asked(other, "take", "0.05") == ["taken"]
    assert command(conf, "resume", "orders").exit_code == TxpoolExitCode.OK
    assert asked(child, "take", "0.05") == ["taken"]


def test_what_is_refused_and_what_is_not_there(conf: Path, start: Start) -> None:
    child, pid = start()
    result = command(conf, "resize", "orders", "--min-size", "3", "--max-size", "1")
    assert result.exit_code == TxpoolExitCode.REFUSED
    assert f"process {pid} refused: pool 'orders': pool.min-size 3 and pool.max-size 1 do not fit" in result.stdout
    assert asked(child, "numbers")[:2] == ["0", "3"]
    assert command(conf, "suspend", "nowhere").exit_code == TxpoolExitCode.NOT_FOUND
    assert command(conf, "flush", "orders", "--how", "now").exit_code == TxpoolExitCode.USAGE
    assert command(conf, "resize", "orders", "--min-size", "-1").exit_code == TxpoolExitCode.USAGE


def test_a_process_that_does_not_answer_is_unknown(conf: Path, start: Start) -> None:
    _, stopped = start()
    _, lively = start()
    os.kill(stopped, signal.SIGSTOP)
    try:
        result = command(conf, "suspend", "orders", "--timeout", "0.3")
        assert result.exit_code == TxpoolExitCode.UNKNOWN
        assert f"process {stopped} has not answered within 0.3 s, and may still do it" in result.stdout
        assert str(lively) in result.stdout
        assert len(sockets(conf)) == 2, "it is not dead"
    finally:
        os.kill(stopped, signal.SIGCONT)


def test_a_process_that_ends_without_an_answer_is_unknown_and_the_others_answer(conf: Path, start: Start) -> None:
    _, lively = start()
    listener, path = folders.bound(conf.parent / "control")

    def ends() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(LONGEST_REQUEST)

    with listener:
        thread = threading.Thread(target=ends)
        thread.start()
        answers = {answer.pid: answer for answer in ask(conf.parent / "control", Request("list"), 5)}
        thread.join()
    path.unlink()
    assert answers[os.getpid()].unknown == f"process {os.getpid()} gave no answer: the other end has closed it"
    assert not answers[lively].unknown


def test_a_dead_processs_socket_is_removed_and_that_of_a_living_one_is_not(conf: Path, start: Start) -> None:
    child, pid = start()
    _, other = start()
    child.kill()
    child.wait()
    assert len(sockets(conf)) == 2
    # A living process has the dead one's pid: it is not asked whether that lives.
    before = next(path for path in sockets(conf) if path.name.startswith(f"{pid}-"))
    before.rename(before.with_name(f"{os.getpid()}-00000000.sock"))
    assert [answer["pid"] for answer in listed(conf)] == [other]
    assert len(sockets(conf)) == 1


def test_it_closes_at_the_processs_end(conf: Path, start: Start) -> None:
    child, _ = start()
    assert len(sockets(conf)) == 1
    child.communicate(timeout=600)
    assert child.returncode == 0
    assert sockets(conf) == []
    assert command(conf, "list").exit_code == TxpoolExitCode.OK


@pytest.mark.parametrize("used", ["used", "idle"])
def test_a_forked_child_listens_on_its_own_once_it_uses_a_pool(conf: Path, start: Start, used: str) -> None:
    parent, pid = start()
    asked(parent, "take", "1")
    tell(parent, "fork", used)
    word, child = said(parent)
    assert word == "child"
    if used == "used":
        assert said(parent) == ["used"]
    expected = {pid, int(child)} if used == "used" else {pid}
    answers = listed(conf)
    assert {answer["pid"] for answer in answers} == expected
    taken = {answer["pid"]: answer["pools"][0]["taken"] for answer in answers}
    assert taken[pid] == 1
    assert taken.get(int(child), 0) == 0, "the child begins with none"
    parent.kill()
    parent.wait()
    alone = "the child holds no copy of the parent's socket"
    until(lambda: pid not in {answer["pid"] for answer in listed(conf)}, what=alone)
    os.kill(int(child), signal.SIGKILL)


def test_a_process_that_was_not_configured_by_code_listens_once_it_uses_a_pool(conf: Path, tmp_path: Path) -> None:
    source = """
        it = txpool.DataSource(name="orders", driver="sqlite3", mode="local", url=f"sqlite:///{sys.argv[1]}")
        say("ready"); heard()
        it.connect().close()
        say("used"); heard()
    """
    with pytest.MonkeyPatch.context() as patch, children(PROLOGUE, "") as spawn:
        patch.setenv("TXPOOL_CONF", str(conf))
        child = spawn(source, str(tmp_path / "one.db"))
        assert said(child) == ["ready"]
        assert sockets(conf) == []
        assert asked(child, "go") == ["used"]
        assert [answer["pid"] for answer in listed(conf)] == [child.pid]


def test_without_the_key_there_is_nothing(tmp_path: Path) -> None:
    file = tmp_path / "txpool.properties"
    file.write_text("node.name = etl-1\n")
    result = command(file, "list")
    assert result.exit_code == TxpoolExitCode.CONFIGURATION
    assert "control.folder is missing, so no process listens: write control.folder = control" in result.stderr
