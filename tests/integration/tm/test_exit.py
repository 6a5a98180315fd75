"""A process that ends leaves nothing to recovery that it could have finished, and never waits long for the rest."""

from __future__ import annotations

import os
import signal
import sqlite3
import textwrap
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from recovery.cli import ExitCode
from tests.support.recovery_site import Site
from txpool.config.secrets import Secret
from txpool.config.settings import DataSourceSettings
from txpool.demo.server import EmbeddedPostgres
from txpool.resources.driver.making import make_driver
from txpool.resources.marked.xids import Xids

if TYPE_CHECKING:
    from tests.conftest import Databases

pytestmark = pytest.mark.part(2)

#: Two transactions that the ledger decides, and one that the log decides.
WORK = """
import os, sys
import txpool
from txpool import failpoints
from txpool.datasource import DataSource, connect, find
from txpool.tm.manager import configure, get_manager
from txpool.tm.demarcation.block import transaction

def write(*names):
    with transaction():
        for name in names:
            connect(f"{name}.properties").cursor().execute("insert into t values (1)")

def work():
    write("one", "ledger")
    write("one", "ledger")
    write("one", "two")

"""
BEGIN = WORK + 'configure("txpool.properties")\n'

#: From here on as in later interpreters: none of them starts a thread when it ends.
NO_THREADS = """
import atexit, threading
def start(self):
    raise RuntimeError("can't create new thread at interpreter shutdown")
atexit.register(setattr, threading.Thread, "start", start)
"""

LEFT = "is left to recovery"


@pytest.fixture(params=["sqlite", "sql"])
def any_site(request: pytest.FixtureRequest, tmp_path: Path, databases: Databases) -> Site:
    return Site(tmp_path, databases, store=request.param)


def run(site: Site, source: str, returncode: int = 0) -> str:
    """What the process says on stderr; one that hangs is an error here."""
    process = site.interpreter(source)
    try:
        output, errors = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == returncode, f"{process.returncode}\n{output}\n{errors}"
    return str(errors)


def assert_nothing_left(site: Site, rows: int = 3) -> None:
    assert (site.marks(), site.kept(), site.databases.prepared()) == ([], {}, [])
    assert site.counts()["one"] == rows
    listed = site.command("list")
    assert listed.returncode == ExitCode.OK, listed.stdout + listed.stderr


@pytest.mark.parametrize(
    ("end", "returncode"),
    [
        ("sys.exit(3)", 3),
        ("raise LookupError('unhandled')", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
    ],
    ids=["sys.exit", "exception", "interrupt"],
)
def test_however_it_ends_nothing_is_left(site: Site, end: str, returncode: int) -> None:
    said = run(site, f"{BEGIN}work()\n{end}", returncode)
    assert LEFT not in said
    assert_nothing_left(site)


def test_an_ordinary_end_leaves_nothing(any_site: Site) -> None:
    assert run(any_site, f"{BEGIN}work()") == ""
    assert_nothing_left(any_site)


@pytest.mark.parametrize(
    "source",
    [
        # A datasource that was dropped, with what it had to delete.
        BEGIN + "import gc\nfrom txpool.datasource.registry import by_key\nwork()\nby_key.clear()\ngc.collect()",
        # A pool that was closed below its datasource.
        BEGIN + 'work()\nfind("ledger.properties").pool.close()',
        # A handle that outlives its datasource: what ends after that is pending again.
        BEGIN
        + 'work()\nwith transaction():\n    handles = [connect(f"{name}.properties") for name in ("one", "ledger")]\n'
        '    find("ledger.properties").close()\n'
        '    for handle in handles:\n        handle.cursor().execute("insert into t values (1)")',
        # Two managers, of which the first goes on in a transaction that was open meanwhile.
        BEGIN + 'with transaction():\n    connect("one.properties").cursor().execute("insert into t values (1)")\n'
        '    connect("ledger.properties").cursor().execute("insert into t values (1)")\n'
        '    configure("txpool.properties")\nwork()',
        BEGIN + 'work()\nconfigure("txpool.properties")\nwork()',
        # Its own handlers run before ours, those that were registered before the import after it.
        "import atexit\natexit.register(lambda: write('one', 'two'))\n" + BEGIN + "atexit.register(work)",
        BEGIN + "work()" + NO_THREADS,
    ],
    ids=["dropped", "pool-closed", "closed-inside", "configured-inside", "configured-twice", "handlers", "no-threads"],
)
def test_whatever_was_closed_before_nothing_is_left(site: Site, source: str) -> None:
    said = run(site, source)
    assert LEFT not in said
    assert "Traceback" not in said, said
    assert_nothing_left(site, site.counts()["one"])
    assert site.counts()["one"] >= 3


def test_one_that_was_given_up_elsewhere_is_rolled_back_once(site: Site) -> None:
    """It is still the ambient one where the program ends, and a thread is at its rollback."""
    source = """
        import time
        from contextvars import copy_context

        def part():
            with transaction():
                for name in ("one", "ledger"):
                    connect(f"{name}.properties").cursor().execute("insert into t values (2)")
                yield

        work()
        given_up = part()
        next(given_up)
        failpoints.arm("coordinator.rolling-back", lambda: time.sleep(1))
        copy_context().run(given_up.close)
    """
    said = run(site, BEGIN + textwrap.dedent(source))
    assert "it can take no more work" not in said, said
    assert LEFT not in said
    assert_nothing_left(site, site.counts()["one"])
    assert set(site.databases.rows("one", "select id from t")) == {(1,)}


@pytest.mark.parametrize("close", ['find("ledger.properties")', "get_manager()"])
def test_closing_by_hand_leaves_nothing_of_it(any_site: Site, close: str) -> None:
    run(any_site, f"{BEGIN}work()\n{close}.close()\nos._exit(0)")
    assert any_site.marks() == []
    if close == "get_manager()":
        assert_nothing_left(any_site)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_process_of_multiprocessing_finishes_its_own(site: Site, method: str) -> None:
    (site.folder / "worker.py").write_text(BEGIN)
    said = run(
        site,
        f"""
        import multiprocessing, sys
        sys.path.insert(0, "")
        import worker
        if __name__ == "__main__":
            worker.work()
            process = multiprocessing.get_context("{method}").Process(target=worker.work)
            process.start()
            process.join()
            import os
            os._exit(process.exitcode)  # the parent leaves what is its own
        """,
    )
    assert LEFT not in said
    # Two rows of the parent's first transactions; the second took the first one's along.
    assert len(site.marks()) == 1
    assert site.counts()["one"] == 6


def test_a_forked_child_leaves_its_parents_alone_and_finishes_its_own(site: Site) -> None:
    said = run(
        site,
        BEGIN
        + """
work()
import sqlite3
def marks():
    return {xid for xid, in sqlite3.connect("ledger.db").execute("select xid from xids where xid <> 'txp1:identity'")}
own = marks()
assert len(own) == 1
for busy in (False, True):
    child = os.fork()
    if child == 0:
        if busy:
            work()
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert marks() == own, marks()
""",
    )
    assert LEFT not in said
    assert_nothing_left(site, 6)


def test_what_is_in_doubt_is_asked_for_once_more(any_site: Site) -> None:
    said = run(
        any_site,
        BEGIN
        + """
for point in ("log.recorded", "log.abort"):
    failpoints.arm(point)
try:
    write("one", "two")
except txpool.TransactionInDoubt:
    failpoints.disarm()
assert get_manager().in_doubt == 1
""",
    )
    assert "is resolved now: committed" in said
    assert LEFT not in said
    assert_nothing_left(any_site, 1)


def test_what_was_left_open_does_not_keep_the_rest_from_its_end(site: Site) -> None:
    said = run(
        site,
        BEGIN + 'work()\ntxpool.begin()\nfor name in ("ledger", "one"):\n'
        '    connect(f"{name}.properties").cursor().execute("insert into t values (1)")\n',
    )
    assert "without an end to it" in said
    assert LEFT not in said
    assert_nothing_left(site)


# -- where it cannot be done -----------------------------------------------------------------------------------------


@pytest.fixture
def other() -> Iterator[EmbeddedPostgres]:
    """A server of the test's own, to be stopped; it goes on at the end."""
    with EmbeddedPostgres() as server:
        yield server
        thaw(server)


def pids(server: EmbeddedPostgres) -> list[int]:
    assert server.pid is not None
    return [server.pid, *map(int, Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split())]


def thaw(server: EmbeddedPostgres) -> None:
    if server.running:
        for pid in pids(server):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


#: In the process: all of the server stands still, as it does where its host has lost its storage.
FREEZE = """
import signal
def freeze(pid, how=signal.SIGSTOP):
    for each in (pid, *map(int, open(f"/proc/{pid}/task/{pid}/children").read().split())):
        os.kill(each, how)
"""


@pytest.fixture
def book(site: Site, other: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The site with another marked datasource, on that server."""
    monkeypatch.setenv("TXPOOL_TEST_BOOK", other.password)
    url = other.url("one")
    site.write("book", f"driver = psycopg\nmode = cmr\nurl = {url}\npassword = ${{env:TXPOOL_TEST_BOOK}}")
    with psycopg.connect(other.dsn("one")) as raw:
        raw.execute("create table t (id int)")
    settings = DataSourceSettings.load(site.folder / "book.properties", password=Secret(other.password))
    Xids("book", make_driver(settings)).create()
    return site


def marked(server: EmbeddedPostgres) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.dsn("one")) as raw:
        return raw.execute("select kind from xids where xid <> 'txp1:identity'").fetchall()


@pytest.mark.costly
@pytest.mark.parametrize(
    "end", ["", NO_THREADS, 'find("book.properties").close()'], ids=["exit", "exit-without-threads", "close"]
)
def test_a_server_that_stands_still_costs_its_own_marks_only(book: Site, other: EmbeddedPostgres, end: str) -> None:
    freeze = f"{FREEZE}\nfreeze({other.pid})\n"
    said = run(book, f'{BEGIN}work()\nwrite("one", "book")\n{freeze}{end}')
    assert said.count(LEFT) == 1, said
    assert "datasource book" in said
    assert "Traceback" not in said
    assert (book.marks(), book.kept()) == ([], {})
    thaw(other)
    assert marked(other) == [("commit",)]


@pytest.mark.costly
def test_a_server_that_is_gone_costs_its_own_marks_only(book: Site, other: EmbeddedPostgres) -> None:
    said = run(book, f'{BEGIN}work()\nwrite("one", "book")\nimport signal\nos.kill({other.pid}, signal.SIGKILL)\n')
    assert said.count(LEFT) == 1, said
    assert "datasource book" in said
    assert "Traceback" not in said
    assert book.kept() == {}


@pytest.mark.costly
@pytest.mark.parametrize(
    ("journal", "end"), [("wal", ""), ("delete", 'find("ledger.properties").close()')], ids=["exit", "close"]
)
def test_a_locked_file_is_left_to_recovery(site: Site, journal: str, end: str) -> None:
    with closing(sqlite3.connect(site.folder / "ledger.db")) as raw:
        raw.execute(f"pragma journal_mode = {journal}")
    lock = (
        "import subprocess\n"
        "locker = subprocess.Popen([sys.executable, '-c', '''import sqlite3, sys\n"
        'db = sqlite3.connect("ledger.db", isolation_level=None)\n'
        'db.execute("begin exclusive")\n'
        'print("locked", flush=True)\n'
        "sys.stdin.read()'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "locker.stdout.readline()\n"
    )
    said = run(site, f"{BEGIN}work()\n{lock}{end}")
    assert "datasource ledger" in said
    assert LEFT in said
    assert "Traceback" not in said
    assert site.kept() == {}
    assert site.marks() == ["commit"]
    assert site.command("scan").returncode == ExitCode.OK
    assert_nothing_left(site)


def logged_elsewhere(site: Site, server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision log on that server."""
    monkeypatch.setenv("TXPOOL_TEST_LOG", server.password)
    url = server.url("two")
    log = f"node.name = etl-1\nlog.url = {url}\nlog.password = ${{env:TXPOOL_TEST_LOG}}"
    site.write("txpool", f"{log}\nlog.create = true")


@pytest.mark.costly
@pytest.mark.parametrize(
    ("how", "threads"),
    [("SIGKILL", ""), ("SIGSTOP", ""), ("SIGSTOP", NO_THREADS)],
    ids=["gone", "still", "still-without-threads"],
)
def test_a_log_that_does_not_answer_costs_what_it_holds_only(
    site: Site, other: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, how: str, threads: str
) -> None:
    logged_elsewhere(site, other, monkeypatch)
    # With its children, which else serve on until they notice.
    said = run(site, f"{BEGIN}work()\n{FREEZE}\nfreeze({other.pid}, signal.{how})\n{threads}")
    assert said.count(LEFT) == 1, said
    assert "log" in said
    assert "Traceback" not in said
    assert site.marks() == []


@pytest.mark.costly
def test_what_stays_in_doubt_is_named(site: Site, other: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log stands still before it has told: neither its settling nor its closing keeps the process."""
    logged_elsewhere(site, other, monkeypatch)
    said = run(
        site,
        f"""{BEGIN}{FREEZE}
write("one", "ledger")
for point in ("log.recorded", "log.abort"):
    failpoints.arm(point)
try:
    with transaction() as tx:
        for name in ("one", "two"):
            connect(f"{{name}}.properties").cursor().execute("insert into t values (1)")
except txpool.TransactionInDoubt:
    failpoints.disarm()
freeze({other.pid})
print(tx.gtrid, file=sys.stderr)
""",
    )
    gtrid = said.split()[0]
    assert f"{gtrid} has not ended" in said
    assert "Traceback" not in said
    assert site.marks() == []
    assert len(site.databases.prepared()) == 2


@pytest.mark.costly
def test_an_impatient_interrupt_ends_the_waiting(book: Site, other: EmbeddedPostgres) -> None:
    interrupt = (
        "import threading\nfrom txpool.process import finishing\n"
        "finishing._thread(lambda: (__import__('time').sleep(1), os.kill(os.getpid(), signal.SIGINT)))\n"
    )
    said = run(book, f'{BEGIN}write("one", "book")\n{FREEZE}\nfreeze({other.pid})\n{interrupt}')
    assert "interrupted" in said
    assert "Traceback" not in said


def test_what_outlives_the_names_of_the_modules_says_nothing(site: Site) -> None:
    """A module that was imported before txpool keeps connections; others keep txpool's modules, as threads do."""
    said = run(
        site,
        f"""import json
{BEGIN}
names = ("one", "ledger")
json.kept = [connect(f"{{name}}.properties") for name in names]  # in use
for name in names:
    with connect(f"{{name}}.properties") as given_back:
        json.kept.append(given_back.pooled)
    json.kept.append(connect(f"{{name}}.properties"))
    json.kept[-1].cursor().execute("insert into t values (1)")
find("ledger.properties").close()
sys.kept = list(sys.modules.values())
""",
    )
    assert said == ""
    assert site.databases.rows("one", "select count(*) from t") == [(0,)]
