"""Eventually: all is healed, every coordinator has ended, recovery has run twice; then nothing stays without a reason.

Whoever makes databases for a crash test tells the fixture `eventually` where they are, and how recovery runs there. A
test after which something must stay says what: `eventually.stays(heuristics=2)`. No more and no less may be there then.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from recovery import RecoveryManager, ScanReport
from tests.conftest import Databases
from tests.crash.folder_site import FolderSite
from tests.crash.site import LOG, SERVED, CrashSite
from tests.support.mysql import MySQLServer
from tests.support.recovery_site import Site
from tests.support.waiting import until
from txpool.demo.server import EmbeddedPostgres
from txpool.xid import PREFIX

#: Of what kind it is, and its name.
Leftover = tuple[str, str]
Query = Callable[[LiteralString], Iterable[tuple[Any, ...]]]

#: How long a server may take to notice that a session has ended, in seconds.
PATIENCE = 60.0

_IN_POSTGRESQL: LiteralString = """
    select 'prepared', gid from pg_prepared_xacts where database = current_database()
    union all select 'locks', format('%s of %s', l.mode, coalesce(l.relation::regclass::text, l.locktype))
        from pg_locks l left join pg_stat_activity a using (pid)
        where l.database = (select oid from pg_database where datname = current_database())
        and l.pid is distinct from pg_backend_pid() and coalesce(a.backend_type, 'client backend') = 'client backend'
    union all select 'staged', c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = 'txpool_spark' and c.relkind = 'r' and c.relname like 'txp1:%'
"""
_IN_MYSQL: LiteralString = """
    select 'locks', concat('transaction of session ', trx_mysql_thread_id) from information_schema.innodb_trx
        where trx_mysql_thread_id <> connection_id()
    union all select 'staged', table_name from information_schema.tables
        where table_name regexp '^txpool_spark_[0-9a-f]{24}$'
"""
#: What a decision log has; a process that has not been fenced is alive, and here all are dead.
_IN_LOG: LiteralString = """
    select 'decisions', gtrid from {}decisions union all select 'finished', gtrid from {}finished
    union all select 'pointers', gtrid from {}pointers union all select 'heuristics', bqual from {}heuristics
    union all select 'alive', name from {}incarnations where fenced = 0
"""
_MARKS: LiteralString = f"select 'marks', xid from xids where xid <> '{PREFIX}:identity'"


def in_postgresql(query: Query) -> Iterator[Leftover]:
    """One database of a server's."""

    def read() -> list[Leftover]:
        return [(str(kind), str(name)) for kind, name in query(_IN_POSTGRESQL)]

    # A server notices a moment later that a process has died; what is prepared has a lock of its own.
    with suppress(AssertionError):
        until(lambda: "locks" not in (kinds := {kind for kind, _ in read()}) or "prepared" in kinds, PATIENCE)
    yield from read()


def in_mysql(server: MySQLServer) -> Iterator[Leftover]:
    """All databases of a server."""
    yield from (("prepared", name) for name in server.names())
    yield from server.execute(_IN_MYSQL)  # type: ignore[misc]


def in_sqlite(file: Path) -> Iterator[Leftover]:
    """A marked file's."""
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("begin immediate")
        except sqlite3.OperationalError as error:
            yield "locks", f"{file.name}: {error}"
            return
        yield from connection.execute(_MARKS)


def in_log(query: Query, prefix: LiteralString = "txpool_") -> Iterator[Leftover]:
    """A log's; an audit entry, where a database is, and the names of fenced processes stay."""
    yield from ((str(kind), str(name)) for kind, name in query(_IN_LOG.replace("{}", prefix)))


def in_log_folder(folder: Path) -> Iterator[Leftover]:
    """The same of a log in a folder."""
    with closing(sqlite3.connect(folder / "log.db")) as log:
        yield from in_log(log.execute, "")  # type: ignore[arg-type]


@dataclass(frozen=True)
class Place:
    """Where faults were, and what ends them."""

    #: Makes whole what was broken.
    heal: Callable[[], object]
    #: Runs recovery twice; all that it has left then, and could not do.
    recover: Callable[[], Iterable[object]]
    left: Callable[[], Iterable[Leftover]]


def complaints(report: ScanReport) -> list[object]:
    """What this scan could not do, and has left."""
    return [*report.errors.items(), *report.unreachable.items(), *report.left_alone]


def scanned_twice(conf: Path) -> Iterable[object]:
    """By this configuration, over one set of connections."""
    with closing(RecoveryManager(conf)) as manager:
        manager.scan()
        return complaints(manager.scan())


def world(site: CrashSite) -> Place:
    """The databases of a world, and its log."""

    def left() -> Iterator[Leftover]:
        for name in dict.fromkeys([*SERVED, LOG]):
            if name == LOG and isinstance(site.log_server, MySQLServer):
                yield from in_mysql(site.log_server)
            else:
                yield from in_postgresql(site.session(name).execute)
        yield from site.session("book").execute(_MARKS)
        yield from in_sqlite(site.folder / "ledger.db")
        if site.in_folder:
            yield from in_log_folder(site.folder / "txlog")
        else:
            yield from in_log(site.session(LOG).execute)
        site.close()

    return Place(site.heal, lambda: scanned_twice(site.conf), left)


def of_files(
    conf: Path,
    *,
    log: str = "txlog",
    marked: Iterable[str] = (),
    dsns: Iterable[str] = (),
    servers: Iterable[EmbeddedPostgres | MySQLServer] = (),
    more: Callable[[], Iterable[Leftover]] = tuple,
) -> Place:
    """What recovery by this file serves, with marked files and a log beside it; `more` is in no database."""

    def heal() -> None:
        for server in servers:
            server.start()

    def left() -> Iterator[Leftover]:
        for dsn in dsns:
            with psycopg.connect(dsn, autocommit=True) as connection:
                yield from in_postgresql(connection.execute)
        for server in servers:
            if isinstance(server, MySQLServer):
                yield from in_mysql(server)
        for name in marked:
            yield from in_sqlite(conf.parent / name)
        yield from in_log_folder(conf.parent / log)
        yield from more()

    return Place(heal, lambda: scanned_twice(conf), left)


def databases_of(databases: Databases) -> Iterator[Leftover]:
    """The shared server's two databases, and those elsewhere."""
    for name in (databases.one, databases.two):
        with psycopg.connect(databases.dsn(name), autocommit=True) as connection:
            yield from in_postgresql(connection.execute)


def folder_site(site: FolderSite, databases: Databases, servers: Iterable[MySQLServer]) -> Place:
    """The databases of a folder's files; recovery is a command."""

    def heal() -> None:
        databases.server.start()
        for server in servers:
            server.start()

    def recover() -> Iterable[object]:
        site.scan()
        done = site.scan()
        return [] if done.returncode == 0 else [done.stdout + done.stderr]

    def left() -> Iterator[Leftover]:
        yield from databases_of(databases)
        for server in servers:
            yield from in_mysql(server)
        yield from (("prepared", name) for name in set(site.prepared()) - {*databases.prepared()})
        yield from (("marks", str(mark)) for mark in site.marks())
        yield from in_log_folder(site.folder / "txlog")
        site.close()

    return Place(heal, recover, left)


def recovery_site(site: Site) -> Place:
    """The databases of such a folder, and its log."""

    def left() -> Iterator[Leftover]:
        yield from databases_of(site.databases)
        yield from in_sqlite(site.folder / "ledger.db")
        if site.store == "sqlite":
            yield from in_log_folder(site.folder / "txlog")
        else:
            yield from in_log(lambda query: (site.log or site.databases).rows("one", query))

    return Place(site.databases.server.start, lambda: scanned_twice(site.conf), left)


class Eventually:
    """What must have ended after a test."""

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._stays: Counter[str] = Counter()

    def in_the(self, place: Place) -> None:
        """At the test's end, look there."""
        self._places.append(place)

    def stays(self, **counts: int) -> None:
        """So many of each kind must be there then."""
        self._stays.update(counts)

    def assert_ended(self) -> None:
        for place in self._places:
            place.heal()
        for place in self._places:
            left_alone = [*place.recover()]
            assert not left_alone, f"recovery has come twice, and has left {left_alone}"
        found = sorted({each for place in self._places for each in place.left()})
        counts = Counter(kind for kind, _ in found)
        assert counts == +self._stays, f"recovery has come twice, and there is {found}"
