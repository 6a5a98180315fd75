"""A real PgBouncer before a server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from txpool.demo.server import EmbeddedPostgres

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@contextmanager
def bouncer(server: EmbeddedPostgres, mode: str, *, server_connections: int = 20) -> Iterator[int]:
    """PgBouncer in this pool_mode; its port. It logs in to the server by itself, and believes whoever comes."""
    assert PROGRAM is not None
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = int(free.getsockname()[1])
    with TemporaryDirectory(prefix="txpool-bouncer-") as name:
        folder = Path(name)
        databases = "\n".join(f"{name} = {server.dsn(name)}" for name in server.databases)
        (folder / "bouncer.ini").write_text(
            f"[databases]\n{databases}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
            f"unix_socket_dir =\nauth_type = any\npool_mode = {mode}\ndefault_pool_size = {server_connections}\n"
            f"max_client_conn = 200\nlogfile = {folder / 'log'}\n"
        )
        command = [PROGRAM, str(folder / "bouncer.ini")]
        if os.geteuid() == 0:  # it refuses to run as root
            for path in (folder, *folder.iterdir()):
                shutil.chown(path, "nobody")
            command[1:1] = ["-u", "nobody"]
        quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        process = subprocess.Popen(command, **quiet)
        try:
            deadline = time.monotonic() + 20
            while True:
                with suppress(psycopg.OperationalError):
                    psycopg.connect(f"postgresql://{server.user}@127.0.0.1:{port}/one").close()
                    break
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield port
        finally:
            process.terminate()
            process.wait(60)
