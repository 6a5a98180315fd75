"""What it takes to list, show and end very many transactions in doubt: memory, processor time, bytes.

So many transactions are prepared in a database and decided in the log, by a process that lives: the daemon scans, and
its page and API are read. Then that process is gone: `list`, its JSON, and a scan that ends them all. Each is a process
of its own. Its memory is what it had at most, by the system's word; its time is the processor's.

    python tests/benchmarks/bench_in_doubt.py [--unreachable] [COUNT...]

With --unreachable nothing is prepared, which takes very long for very many: the log has the decisions of a process that
is gone, and their database does not answer. So the scan ends none of them.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parents[2]))

from recovery.cli import ExitCode
from tests.benchmarks.prepared import holding_in_doubt
from tests.benchmarks.report import Cost, print_table
from tests.benchmarks.running import place_in
from txpool.demo.server import EmbeddedPostgres
from txpool.log import open_log
from txpool.resources.base import BranchRecord
from txpool.xid import make_gtrid, make_xid

COUNTS = (1_000, 10_000, 100_000)
NODE = "bench"
EVIDENCE = {"xid": "12345", "timeline": "1"}
_MEGABYTE = 1_000_000
_TIMEOUT = 3600.0
_KEPT_MEMORY = re.compile(r"VmHWM:\s+(\d+) kB")


class Site:
    """A database, a log and recovery's files in a folder."""

    def __init__(self, folder: Path, url: str = "") -> None:
        self._folder = folder
        self._address = _free_address()
        self._write("one", "driver = psycopg", "mode = xa", f"url = {url or f'postgresql://{_free_address()}/one'}")
        lines = [f"node.name = {NODE}", f"log.url = sqlite:///{folder}/txlog", "datasources = one.properties"]
        lines.append("recovery.step-timeout = 600s")  # the machine may be busy
        self._write("recovery", *lines)
        self._write("daemon", *lines, f"status.address = {self._address}")
        open_log(f"sqlite:///{folder}/txlog", node=NODE, create=True).close()

    def decide(self, count: int) -> None:
        """Decide so many transactions, in the name of an incarnation that is gone then."""
        with closing(open_log(f"sqlite:///{self._folder}/txlog", node=NODE)) as log:
            for number in range(count):
                gtrid = make_gtrid(NODE, log.incarnation, number)
                log.record(
                    gtrid, [BranchRecord(make_xid(gtrid, 0, "one"), "one", "7390581437062345678/16384", EVIDENCE)]
                )

    def _write(self, name: str, *lines: str) -> None:
        (self._folder / f"{name}.properties").write_text("\n".join([*lines, ""]))

    def command(self, *arguments: str) -> list[str]:
        """Run a command of recovery's, and say what it took."""
        output = self._folder / "output"
        with output.open("wb") as file:
            process = self._start(*arguments, conf="recovery", stdout=file)
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (ExitCode.OK, ExitCode.IN_DOUBT, ExitCode.SLOTS, ExitCode.UNREACHABLE):
            raise RuntimeError(f"{arguments}: exit code {process.returncode}")
        return _row(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, output.stat().st_size)

    def daemon(self) -> Iterator[list[str]]:
        """What the daemon took for its first scan, and then for its page and for the whole list by parts."""
        process = self._start("run", conf="daemon", stdout=subprocess.DEVNULL)
        try:
            before = 0.0
            for name, read in (
                ("the daemon's scan", self._scanned),
                ("its page", lambda: len(self._read("/"))),
                ("its list, in parts", self._parts),
            ):
                length = read()
                seconds, memory = _so_far(process.pid)
                yield [name, *_row(seconds - before, memory, length)]
                before = seconds
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


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def _commands(site: Site) -> Iterator[list[str]]:
    for arguments in (("list",), ("list", "--json"), ("list", "--limit", "100"), ("scan",)):
        yield [" ".join(arguments), *site.command(*arguments)]


def _print(count: int, rows: Iterable[list[str]]) -> None:
    found = []
    for row in rows:
        print(*row, sep=", ", file=sys.stderr, flush=True)  # it may take long
        found.append(row)
    headings = ["", "s of processor", "MB at most", "MB of output"]
    print_table(f"{count:,} transactions in doubt", headings, found)


def _prepared(count: int) -> None:
    settings = {"max_prepared_transactions": str(count + 100), "max_wal_size": "8GB", "fsync": "off"}
    settings |= dict.fromkeys(("max_locks_per_transaction", "max_pred_locks_per_transaction"), "10")  # less memory
    with (
        place_in("memory") as place,
        EmbeddedPostgres(place.folder / "server", databases=["one"], settings=settings) as server,
    ):
        with psycopg.connect(server.dsn("one")) as connection:
            connection.execute("create table t (a integer)")
        os.environ["PGPASSWORD"] = server.password
        site = Site(place.folder, server.url("one"))
        begun = Cost.so_far([server])
        with holding_in_doubt(place.folder, NODE, ["one"], count):
            prepared = Cost.so_far([server])
            rows = [*site.daemon()]
        before = Cost.so_far([server])
        _print(count, [*rows, *_commands(site)])
        ended = Cost.so_far([server])
        with psycopg.connect(server.dsn("one")) as connection:
            (committed,) = connection.execute("select count(*) from t").fetchone() or (0,)
        assert committed == count, f"{committed} of {count} were committed"
    each = [prepared.per(count, begun).server, ended.per(count, before).server]
    print(f"the server's processor time: {each[0]:,.0f} µs to prepare each, {each[1]:,.0f} µs to list and commit it")


def _unreachable(count: int) -> None:
    with place_in("memory") as place:
        site = Site(place.folder)
        site.decide(count)
        _print(count, chain(site.daemon(), _commands(site)))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--unreachable", action="store_true")
    arguments.add_argument("counts", nargs="*", type=int, default=COUNTS)
    options = arguments.parse_args()
    for count in options.counts:
        (_unreachable if options.unreachable else _prepared)(count)


if __name__ == "__main__":
    main()
