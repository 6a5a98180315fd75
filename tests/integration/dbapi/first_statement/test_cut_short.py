"""A first message that is cut short by the server, the network or an interrupt: nobody takes its rest for another's."""

from __future__ import annotations

import itertools
import select
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from time import monotonic, sleep
from types import FrameType
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support.interrupts import at_each_check, codes_of
from tests.support.proxy import NetworkFault, Proxy
from txpool.datasource import DataSource
from txpool.dbapi.enlistment import Enlistment
from txpool.errors import TransactionRolledBack
from txpool.resources.postgresql.session import first_statement, psycopg_private
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases

INSERT = "insert into t values (%s, %s)"


@contextmanager
def behind_proxy(databases: Databases) -> Iterator[tuple[Proxy, DataSource]]:
    """The database "one" behind a proxy."""
    proxy = Proxy(databases.server.port)
    url = databases.url("one").replace(f":{databases.server.port}/", f":{proxy.port}/")
    password = databases.server.password
    with closing(proxy), DataSource(name="one", driver="psycopg", url=url, password=password) as datasource:
        yield proxy, datasource


@contextmanager
def lost_behind_proxy(databases: Databases) -> Iterator[tuple[Proxy, Any]]:
    """A connection behind a proxy, in a transaction that may roll back."""
    with (
        behind_proxy(databases) as (proxy, datasource),
        suppress(TransactionRolledBack),
        transaction(),
        datasource.connect() as connection,
    ):
        yield proxy, connection


def test_the_server_ends_the_session_meanwhile(postgres_source: DataSource, databases: Databases) -> None:
    with pytest.raises(TransactionRolledBack), transaction(), postgres_source.connect() as connection:
        pid = connection.info.backend_pid

        def kill() -> None:
            active = f"select 1 from pg_stat_activity where pid = {pid} and state = 'active'"
            while not databases.rows("one", active):
                pass
            databases.execute("one", f"select pg_terminate_backend({pid})")

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("insert into t select 1, 'v' from pg_sleep(60)")
        killer.join()
    with transaction(), postgres_source.connect() as connection:
        assert connection.execute("select count(*) from t").fetchone() == (0,)


@pytest.mark.parametrize("size", [1, 20_000_000])
@pytest.mark.parametrize("prepare", [None, True])
def test_the_server_has_ended_the_session_before(
    postgres_source: DataSource, databases: Databases, size: int, prepare: bool | None
) -> None:
    """The server's farewell is told, however much of the statement is not sent."""
    with pytest.raises(TransactionRolledBack), transaction(), postgres_source.connect() as connection:
        databases.rows("one", f"select pg_terminate_backend({connection.info.backend_pid}, 5000)")
        with pytest.raises(psycopg.errors.AdminShutdown, match="administrator command"):
            connection.execute(INSERT, (1, "v" * size), prepare=prepare)


def test_an_answer_that_comes_byte_by_byte(databases: Databases) -> None:
    """Whatever has come, the GIL is not held for the rest: the proxy's threads, which send it, are of this process."""
    databases.execute("one", "create table t (id integer primary key, v text)")

    def bytewise(data: bytes) -> None:
        for byte in data:
            sleep(0.005)
            link._client.sendall(bytes([byte]))

    with behind_proxy(databases) as (proxy, datasource):
        for prepare in (None, True):
            with transaction(), datasource.connect() as connection:
                (link,) = proxy._links
                link._listening = bytewise
                inserted = connection.execute(INSERT + " returning id", (int(prepare is True), "v"), prepare=prepare)
                assert inserted.fetchall() == [(int(prepare is True),)]
                link._listening = link._client.sendall
    assert databases.rows("one", "select id from t order by id") == [(0,), (1,)]


def test_an_answer_that_has_come_while_the_message_was_sent(
    postgres_source: DataSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libpq reads while it sends what is long, and may have read all of it: then nothing more comes."""
    send = psycopg_private.generators.send

    def read_too(pgconn: Any) -> Iterator[Any]:
        yield from send(pgconn)
        while pgconn.is_busy():
            select.select([pgconn.socket], [], [])
            pgconn.consume_input()

    monkeypatch.setattr(psycopg_private.generators, "send", read_too)
    with transaction(timeout=10), postgres_source.connect() as connection:
        assert connection.execute("select %s", (1,)).fetchone() == (1,)


def test_the_network_has_ended_it_before(databases: Databases) -> None:
    with lost_behind_proxy(databases) as (proxy, connection):
        for link in proxy._links:
            link._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        proxy.close()
        with pytest.raises(psycopg.OperationalError, match=r"server closed the connection|reset by peer"):
            connection.execute("select %s", ("v" * 20_000_000,))


def test_what_the_network_has_cut_is_not_cancelled(databases: Databases) -> None:
    """The server may not be there, and a cancel would wait for it."""
    databases.execute("one", "create table t (id integer, v text)")
    with lost_behind_proxy(databases) as (proxy, connection):
        proxy.fail_at(b"insert", NetworkFault.CUT_AFTER)
        with pytest.raises(psycopg.OperationalError):
            connection.execute(INSERT, (1, "v"))
        assert len(proxy._links) == 1


def test_an_answer_that_libpq_does_not_understand(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for in a loop."""
    with lost_behind_proxy(databases) as (proxy, connection):
        (link,) = proxy._links
        send = link._listening
        assert send is not None
        monkeypatch.setattr(link, "_listening", lambda answer: send(answer[:1] + b"\x7f" + answer[2:]))
        with pytest.raises(psycopg.DatabaseError, match="lost synchronization"):
            connection.execute("select %s", (1,))


def test_another_exception_while_it_waits(postgres_source: DataSource, databases: Databases) -> None:
    """No later statement takes its answers for its own, and the server does not go on with it."""

    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    former = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(TransactionRolledBack), transaction(), postgres_source.connect() as connection:
            pid = connection.info.backend_pid
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Alarm) as kept:  # its traceback refers to where psycopg waits
                connection.execute("select 1 from pg_sleep(60)")
            for _ in range(2):
                with pytest.raises(psycopg.OperationalError, match="closed"):
                    connection.execute(INSERT, (1, "v"))
    finally:
        signal.signal(signal.SIGALRM, former)
    del kept
    until = monotonic() + 600
    while databases.rows("one", f"select 1 from pg_stat_activity where pid = {pid}"):
        assert monotonic() < until
    assert databases.rows("one", "select id from t") == []


def test_an_interrupt_cancels_it(postgres_source: DataSource) -> None:
    with suppress(KeyboardInterrupt), transaction(), postgres_source.connect() as connection:
        pid = connection.info.backend_pid
        threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
        connection.execute("insert into t select 1, 'v' from pg_sleep(60)")
    with transaction(), postgres_source.connect() as connection:
        assert connection.info.backend_pid == pid, "the session is whole, and the pool keeps it"
        assert connection.execute("select count(*) from t").fetchone() == (0,)


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt."""


def test_a_second_interrupt(postgres_source: DataSource, databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes before anything is done about the first: no later statement takes the message's answers."""

    def interrupted(connection: Any, steps: Any = None, *_: Any) -> None:
        if steps is not None:
            next(steps)  # the message is sent
        raise Interrupt

    with pytest.raises(TransactionRolledBack), transaction(), postgres_source.connect() as connection:
        with monkeypatch.context() as patch, pytest.raises(Interrupt):
            patch.setattr(psycopg.Connection, "wait", interrupted)
            patch.setattr(first_statement, "cancel_message", interrupted)
            connection.execute("select 7 where %s", (True,))
        with pytest.raises(psycopg.OperationalError, match="closed"):
            connection.execute(INSERT, (1, "v"))
    assert databases.rows("one", "select id from t") == []


_CODES = codes_of(psycopg_private) | codes_of(first_statement)
_CODES |= {Enlistment.start.__code__, Enlistment.execute_first.__code__}


@pytest.mark.parametrize("prepare", [None, True])
@pytest.mark.parametrize("goes_on", [False, True])
def test_an_interrupt_at_each_place(
    postgres_source: DataSource, databases: Databases, prepare: bool | None, goes_on: bool
) -> None:
    """The transaction has executed the statement, or it has not, or it cannot commit; the next user is not touched."""
    for nth in itertools.count():
        left, place = [nth], [""]

        def strike(frame: FrameType, left: list[int] = left, place: list[str] = place) -> None:
            left[0] -= 1
            if left[0] == -1:
                place[0] = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                raise Interrupt

        committed = again = False
        with suppress(Interrupt, psycopg.Error):
            with transaction(), postgres_source.connect() as connection:
                try:
                    with at_each_check(_CODES, strike):
                        connection.execute(INSERT, (2 * nth, "v"), prepare=prepare)
                except Interrupt:
                    if not goes_on:
                        raise
                    connection.execute(INSERT, (2 * nth + 1, "v"), prepare=prepare)
                    again = True
            committed = True
        found = databases.rows("one", f"select id from t where id / 2 = {nth} order by id")
        if not committed:
            assert found == [], place
        elif again:
            assert (2 * nth + 1,) in found, place
        else:
            assert found == [(2 * nth,)], place
        if not place[0]:
            break
    assert nth > 10
