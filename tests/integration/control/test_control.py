"""`txpool pool …` acts on the pools of running processes, by sockets that nobody else reaches."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

import txpool.cli
from tests.support.children import Child, children, said, tell
from txpool.control import folder as folders
from txpool.control.client import Answer, ask
from txpool.control.messages import LONGEST_REQUEST, MessageError, Request
from txpool.errors import ConfigurationError
from txpool.exit_codes import ExitCode
from txpool.pool import PoolStatistics
from txpool.tm.manager import get_manager

if TYPE_CHECKING:
    from tests.conftest import Require

PROLOGUE = """
import os, sys, threading
import txpool
"""
#: A process with one pool, which does what it is told.
WORKER = """
txpool.configure(sys.argv[1])
options = {"driver": "sqlite3", "mode": "local", "pool_max_size": 3}
it = txpool.DataSource(name=sys.argv[3], url=f"sqlite:///{sys.argv[2]}", **options)
held = []
say("ready", os.getpid())
while (words := heard()):
    match words[0]:
        case "take":
            try:
                held.append(it.connect(timeout=float(words[1])))
                say("taken")
            except txpool.PoolTimeout:
                say("timeout")
        case "give":
            held.pop().close()
            say("given")
        case "numbers":
            now = it.statistics()
            say(now.min_size, now.max_size, now.size, now.idle, now.suspended)
        case "fork":
            pid = os.fork()
            if pid == 0:
                say("child", os.getpid())
                if words[1] == "used":
                    it.connect().close()
                    say("used")
                heard()
                os._exit(0)
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    file = tmp_path / "txpool.properties"
    file.write_text("control.folder = control\n")
    return file


Start = Callable[..., tuple[Child, int]]


@pytest.fixture
def start(conf: Path, tmp_path: Path) -> Iterator[Start]:
    with children(PROLOGUE, "") as spawn:

        def start(name: str = "orders") -> tuple[Child, int]:
            child = spawn(WORKER, str(conf), str(tmp_path / "one.db"), name)
            word, pid = said(child)
            assert word == "ready"
            return child, int(pid)

        yield start


def command(conf: Path, *arguments: str) -> Result:
    return CliRunner().invoke(txpool.cli.app, ["pool", *arguments, "--conf", str(conf)])


def listed(conf: Path, *arguments: str) -> list[dict[str, Any]]:
    result = command(conf, "list", "--json", *arguments)
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def sockets(conf: Path) -> list[Path]:
    return sorted((conf.parent / "control").glob("*.sock"))


def asked(child: Child, *words: str) -> list[str]:
    tell(child, *words)
    return said(child)


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
    assert result.exit_code == ExitCode.OK
    assert all(word in result.stdout for word in ("orders", "ledger", str(one), str(two)))
    assert [answer["pid"] for answer in listed(conf, "--pid", str(one))] == [one]


def test_resize_flush_suspend_and_resume(conf: Path, start: Start) -> None:
    child, _ = start()
    other, _ = start("ledger")
    assert command(conf, "resize", "orders", "--max-size", "7").exit_code == ExitCode.OK
    assert asked(child, "numbers") == ["0", "7", "0", "0", "False"]
    assert asked(other, "numbers") == ["0", "3", "0", "0", "False"]
    asked(child, "take", "1")
    asked(child, "take", "1")
    asked(child, "give")
    assert command(conf, "flush", "orders", "--how", "idle").exit_code == ExitCode.OK
    assert asked(child, "numbers")[2:4] == ["1", "0"]
    assert command(conf, "flush", "orders").exit_code == ExitCode.OK
    asked(child, "give")
    assert asked(child, "numbers")[2] == "0", "by default, what was taken is closed when it comes back"
    result = command(conf, "suspend", "orders")
    assert result.exit_code == ExitCode.OK
    assert "suspended" in result.stdout
    assert asked(child, "take", "0.05") == ["timeout"]
    assert asked(other, "take", "0.05") == ["taken"]
    assert command(conf, "resume", "orders").exit_code == ExitCode.OK
    assert asked(child, "take", "0.05") == ["taken"]


def test_what_is_refused_and_what_is_not_there(conf: Path, start: Start) -> None:
    child, pid = start()
    result = command(conf, "resize", "orders", "--min-size", "3", "--max-size", "1")
    assert result.exit_code == ExitCode.REFUSED
    assert f"process {pid} refused: pool 'orders': pool.min-size 3 and pool.max-size 1 do not fit" in result.stdout
    assert asked(child, "numbers")[:2] == ["0", "3"]
    assert command(conf, "suspend", "nowhere").exit_code == ExitCode.NOT_FOUND
    assert command(conf, "flush", "orders", "--how", "now").exit_code == ExitCode.USAGE
    assert command(conf, "resize", "orders", "--min-size", "-1").exit_code == ExitCode.USAGE


def test_a_process_that_does_not_answer_is_unknown(conf: Path, start: Start) -> None:
    _, stopped = start()
    _, lively = start()
    os.kill(stopped, signal.SIGSTOP)
    try:
        result = command(conf, "suspend", "orders", "--timeout", "0.3")
        assert result.exit_code == ExitCode.UNKNOWN
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
    child.communicate(timeout=20)
    assert child.returncode == 0
    assert sockets(conf) == []
    assert command(conf, "list").exit_code == ExitCode.OK


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
    deadline = time.monotonic() + 20
    while pid in {answer["pid"] for answer in listed(conf)}:
        assert time.monotonic() < deadline, "the child holds no copy of the parent's socket"
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
    assert result.exit_code == ExitCode.CONFIGURATION
    assert "control.folder is missing, so no process listens: write control.folder = control" in result.stderr


# -- who may reach it -----------------------------------------------------------------------------------------------


def test_the_folder_is_its_owners_alone(conf: Path, start: Start) -> None:
    start()
    assert (conf.parent / "control").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda folder: (folder.mkdir(), folder.chmod(0o777)), "others can write to the folder"),
        (lambda folder: (folder.mkdir(), folder.chmod(0o1777)), "others may enter"),
        (lambda folder: (folder.mkdir(), folder.chmod(0o750)), "others may enter"),
        (lambda folder: (folder.mkdir(0o700), os.chown(folder, 12345, 12345)), "belongs to user 12345"),
        (lambda folder: (folder.with_name("real").mkdir(0o777), folder.symlink_to("real")), "others"),
        (lambda folder: folder.write_text(""), "is no folder"),
        (lambda folder: None, ""),
    ],
)
def test_a_folder_that_is_not_safe_is_refused(
    conf: Path, prepare: Callable[[Path], object], said: str, require: Require
) -> None:
    folder = conf.parent / "control"
    require(os.geteuid() == 0 or "12345" not in said, "root, who can give a folder away")
    prepare(folder)
    if folder.is_symlink():
        (conf.parent / "real").chmod(0o777)
    if not said:
        assert folders.made(folder) == folder
        return
    with pytest.raises(ConfigurationError, match=f"control.folder = .* is not used: .*{said}"):
        folders.made(folder)


def test_a_folder_that_is_refused_changes_nothing(conf: Path, tmp_path: Path) -> None:
    txpool.configure(conf)
    before, listening = get_manager(), sockets(conf)
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(ConfigurationError, match="others may enter"):
        txpool.configure(
            node_name="other", log_url=f"sqlite:///{tmp_path}/log", log_create=True, control_folder=f"{tmp_path}/open"
        )
    assert get_manager() is before
    assert sockets(conf) == listening != []
    txpool.configure()
    assert sockets(conf) == []


def test_a_path_that_is_too_long_for_a_socket(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is too long: a socket's path may have 107 bytes"):
        folders.made(tmp_path / ("long" * 30))


def test_where_there_are_no_unix_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_PEERCRED")
    with pytest.raises(ConfigurationError, match=r"control\.folder needs unix sockets .*leave control\.folder out"):
        txpool.configure(control_folder=str(tmp_path / "control"))
    assert not (tmp_path / "control").exists()


def test_root_changes_nothing_in_another_users_folder(tmp_path: Path, require: Require) -> None:
    """Its owner could put a link to any other folder in its place meanwhile."""
    require(os.geteuid() == 0, "root, who asks the processes of other users")
    folder = tmp_path / "control"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "1-dead.sock"))
    os.chown(folder, 65534, 65534)
    assert ask(folder, Request("list")) == []
    assert [path.name for path in folder.iterdir()] == ["1-dead.sock"]


def test_another_user_is_refused_though_he_has_reached_the_socket(conf: Path, start: Start, require: Require) -> None:
    require(os.geteuid() == 0, "root, who can become another user")
    child, _ = start()
    (path,) = sockets(conf)
    path.parent.chmod(0o711)
    path.chmod(0o777)
    program = textwrap.dedent("""
        import os, socket, sys
        folder, name = os.path.split(sys.argv[1])
        os.chdir(folder)
        os.setuid(65534)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(name)
            try:
                connection.sendall(b'{"do": "suspend", "pool": "orders"}\\n')
                print(connection.recv(100))
            except (ConnectionResetError, BrokenPipeError):
                print(b"")
    """)
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "b''\n"
    assert asked(child, "numbers")[4] == "False"


@pytest.mark.parametrize(
    "sent",
    [
        b"\n",
        b"[]\n",
        b"{}\n",
        b'{"do": "list", "more": 1}\n',
        b'{"do": "resize", "pool": "orders", "min_size": true, "max_size": 5}\n',
        b'{"do": "resize", "pool": "orders", "min_size": 0, "max_size": 1e3}\n',
        b'{"do": "resize", "pool": "orders", "min_size": 0, "max_size": 99999999}\n',
        b'{"do": "resize", "pool": "orders", "min_size": 0, "max_size": -1}\n',
        b'{"do": "suspend", "pool": ["orders"]}\n',
        b'{"do": "flush", "pool": "orders", "how": "now"}\n',
        b'{"do": ["suspend"], "pool": "orders"}\n',
        b"[" * 4000 + b"\n",
        b"x" * (LONGEST_REQUEST + 10),
        b'{"do": "suspend", "pool": "orders"}\n{"do": "suspend", "pool": "orders"}\n',
        b'{"do": "suspend", "pool": "orders"}',  # without its end
        b"\x80\x04\x95.\n",
        b"",
    ],
)
def test_what_is_no_request_does_nothing_and_the_next_one_is_served(conf: Path, start: Start, sent: bytes) -> None:
    child, pid = start()
    (path,) = sockets(conf)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(sent)
        if not sent.endswith(b"\n"):
            connection.shutdown(socket.SHUT_WR)
        connection.settimeout(10)
        try:
            answer = connection.recv(10_000)
        except ConnectionResetError:
            answer = b""
    assert answer == b"" or "error" in json.loads(answer)
    assert asked(child, "numbers") == ["0", "3", "0", "0", "False"]
    assert [each["pid"] for each in listed(conf)] == [pid]


def test_one_that_says_nothing_keeps_the_others_waiting_for_seconds_only(conf: Path, start: Start) -> None:
    _, pid = start()
    (path,) = sockets(conf)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        assert [each["pid"] for each in listed(conf, "--timeout", "20")] == [pid]


def test_an_answer_is_data_and_no_more(conf: Path) -> None:
    """What a process says is shown without what a terminal would take for commands."""
    folder = folders.made(conf.parent / "control")
    listener, path = folders.bound(folder)
    with listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(
                    b'{"pid": 1, "pools": [{"name": "\\u001b[2Jevil\\n", "size": [1], "closed": null}, 7], '
                    b'"failures": ["\\u001b[31m"]}\n'
                )

        thread = threading.Thread(target=serve)
        thread.start()
        (answer,) = ask(folder, Request("list"), 5)
        thread.join()
    path.unlink()
    assert answer == Answer(os.getpid(), [{"name": " [2Jevil ", "size": "[1]", "closed": None}], [" [31m"])


@pytest.mark.parametrize("answer", [b"", b"{}", b"[]\n", b'{"error": "why"}\n', b"\xff\n"])
def test_an_answer_that_is_none_is_unknown(conf: Path, answer: bytes) -> None:
    folder = folders.made(conf.parent / "control")
    listener, path = folders.bound(folder)

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(answer)

    with listener:
        thread = threading.Thread(target=serve)
        thread.start()
        result = command(conf, "suspend", "orders")
        thread.join()
    path.unlink()
    assert result.exit_code == ExitCode.UNKNOWN
    assert f"process {os.getpid()} " in result.stdout


def test_a_request_is_what_it_says() -> None:
    for request in (
        Request("list"),
        Request("resize", "orders", 1, 2),
        Request("flush", "orders", how="all"),
        Request("suspend", "orders"),
        Request("resume", "orders"),
    ):
        assert Request.parse(request.encoded()) == request
    with pytest.raises(MessageError):
        Request.parse(b'{"do": "pickle"}')
