"""Nobody else reaches a process's socket, and nothing that is no request does anything."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txpool.cli
from tests.integration.control.processes import Start, asked, command, listed, sockets
from txpool.control import folder as folders
from txpool.control.client import ProcessReply, ask
from txpool.control.messages import LONGEST_REQUEST, MessageError, Request
from txpool.errors import ConfigurationError
from txpool.process.exit_codes import TxpoolExitCode
from txpool.tm.manager import get_manager

if TYPE_CHECKING:
    from tests.conftest import Require


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
        assert folders.ensure(folder) == folder
        return
    with pytest.raises(ConfigurationError, match=f"control.folder = .* is not used: .*{said}"):
        folders.ensure(folder)


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
        folders.ensure(tmp_path / ("long" * 30))


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
            connection.settimeout(60)
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
        connection.settimeout(60)
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
    folder = folders.ensure(conf.parent / "control")
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
    assert answer == ProcessReply(os.getpid(), [{"name": " [2Jevil ", "size": "[1]", "closed": None}], [" [31m"])


@pytest.mark.parametrize("answer", [b"", b"{}", b"[]\n", b'{"error": "why"}\n', b"\xff\n"])
def test_an_answer_that_is_none_is_unknown(conf: Path, answer: bytes) -> None:
    folder = folders.ensure(conf.parent / "control")
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
    assert result.exit_code == TxpoolExitCode.UNKNOWN
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
