"""What it takes to list, show and end very many transactions in doubt: memory, processor time, bytes.

So many transactions are prepared in a database and decided in the log, by a process that lives: the daemon scans, and
its page and API are read. Then that process is gone: `list`, its JSON, and a scan that ends them all. Each is a process
of its own. Its memory is what it had at most, by the system's word; its time is the processor's.

    python tests/benchmarks/bench_in_doubt.py [COUNT...]
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.prepared import holding_in_doubt
from tests.benchmarks.report import Cost, print_table
from tests.benchmarks.running import place_in
from txpool.demo.server import EmbeddedPostgres
from txpool.log import open_log

COUNTS = (1_000, 10_000, 100_000)
NODE = "bench"
_MEGABYTE = 1_000_000
_TIMEOUT = 3600.0
_KEPT_MEMORY = re.compile(r"VmHWM:\s+(\d+) kB")


class Site:
    """A database, a log and recovery's files in a folder."""

    def __init__(self, folder: Path, server: EmbeddedPostgres) -> None:
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        with psycopg.connect(server.dsn("one")) as connection:
            connection.execute("create table t (a integer)")
        self._write("one", "driver = psycopg", "mode = xa", f"url = {server.url('one')}")
        log = f"log.url = sqlite:///{folder}/txlog"
        self._write("recovery", f"node.name = {NODE}", log, "datasources = one.properties")
        self._write(
            "daemon", f"node.name = {NODE}", log, "datasources = one.properties", f"status.address = {self._address}"
        )
        open_log(f"sqlite:///{folder}/txlog", node=NODE, create=True).close()
        os.environ["PGPASSWORD"] = server.password

    def _write(self, name: str, *lines: str) -> None:
        (self._folder / f"{name}.properties").write_text("\n".join([*lines, ""]))

    def command(self, *arguments: str) -> list[str]:
        """Run a command of recovery's, and say what it took."""
        output = self._folder / "output"
        with output.open("wb") as file:
            process = self._start(*arguments, conf="recovery", stdout=file)
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1, 9):
            raise RuntimeError(f"{arguments}: exit code {process.returncode}")
        return _row(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, output.stat().st_size)

    def daemon(self) -> dict[str, list[str]]:
        """What the daemon took for its first scan, and then for its page and for the whole list by parts."""
        process = self._start("run", conf="daemon", stdout=subprocess.DEVNULL)
        try:
            before = (0.0, 0)
            found = {}
            for name, read in (
                ("the daemon's scan", self._scanned),
                ("its page", lambda: len(self._read("/"))),
                ("its list, in parts", self._parts),
            ):
                length = read()
                seconds, memory = _so_far(process.pid)
                found[name] = _row(seconds - before[0], memory, length)
                before = (seconds, memory)
            return found
        finally:
            process.terminate()
            process.wait()

    def _start(self, *arguments: str, conf: str, stdout: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "recovery", *arguments, "--conf", str(self._folder / f"{conf}.properties")]
        return subprocess.Popen(command, stdout=stdout, stderr=subprocess.DEVNULL)  # type: ignore[call-overload,no-any-return]

    def _read(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://{self._address}{path}", timeout=_TIMEOUT) as response:
            return bytes(response.read())

    def _scanned(self) -> int:
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                part = self._read("/api/in-doubt?from=0&limit=1")
            except OSError:
                part = b'"at": null'
            if b'"at": null' not in part:
                return 0
            if time.monotonic() > deadline:
                raise RuntimeError("the daemon has not scanned")
            time.sleep(0.5)

    def _parts(self) -> int:
        length = 0
        first = 0
        while True:
            part = self._read(f"/api/in-doubt?from={first}&limit=1000")
            length += len(part)
            first += 1000
            if b'"gtrid"' not in part:
                return length


def _so_far(pid: int) -> tuple[float, int]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    found = _KEPT_MEMORY.search(Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(found[1]) * 1024


def _row(seconds: float, memory: float, length: int) -> list[str]:
    return [f"{seconds:,.2f}", f"{memory / _MEGABYTE:,.0f}", f"{length / _MEGABYTE:,.2f}"]


def _measure(count: int) -> None:
    settings = {"max_prepared_transactions": str(count + 100), "max_wal_size": "8GB", "fsync": "off"}
    settings |= dict.fromkeys(("max_locks_per_transaction", "max_pred_locks_per_transaction"), "10")  # less memory
    with (
        place_in("memory") as place,
        EmbeddedPostgres(place.folder / "server", databases=["one"], settings=settings) as server,
    ):
        site = Site(place.folder, server)
        begun = Cost.so_far([server])
        with holding_in_doubt(place.folder, NODE, ["one"], count):
            prepared = Cost.so_far([server])
            rows = site.daemon()
        rows["list"] = site.command("list")
        rows["list --json"] = site.command("list", "--json")
        rows["list --limit 100"] = site.command("list", "--limit", "100")
        before = Cost.so_far([server])
        rows["scan, which commits all"] = site.command("scan")
        committed = Cost.so_far([server])
        with psycopg.connect(server.dsn("one")) as connection:
            (ended,) = connection.execute("select count(*) from t").fetchone() or (0,)
        assert ended == count, f"{ended} of {count} were committed"
    table = [[name, *cells] for name, cells in rows.items()]
    print_table(f"{count:,} transactions in doubt", ["", "s of processor", "MB at most", "MB of output"], table)
    each = [prepared.per(count, begun).server, committed.per(count, before).server]
    print(
        f"the server's processor time: {each[0]:,.0f} µs to prepare each, {each[1]:,.0f} µs to commit it, in the mean"
    )


def main(counts: Sequence[int]) -> None:
    for count in counts:
        _measure(count)


if __name__ == "__main__":
    main([*map(int, sys.argv[1:])] or COUNTS)
