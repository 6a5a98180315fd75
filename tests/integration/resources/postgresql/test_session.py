"""Messages over a session: what is told where the server, or an interrupt, has come in between."""

from __future__ import annotations

import select
import socket
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.integration.resources.postgresql.branches import BranchDatabase
from txpool.resources.deadlines import ReplyTimeout

if TYPE_CHECKING:
    from txpool.resources.postgresql.session.libpq import LibpqSession


@pytest.fixture
def raw(world: BranchDatabase) -> Any:
    raw = world.driver.connect()
    world.raws.append(raw)
    return raw


def end_session(world: BranchDatabase, raw: Any) -> None:
    """Have the server end the session, and wait until its last words have arrived."""
    world.databases.execute("one", f"select pg_terminate_backend({raw.info.backend_pid})")
    assert select.select([raw.pgconn.socket], [], [], 10)[0]


def read(raw: Any) -> None:
    select.select([raw.pgconn.socket], [], [], 10)
    raw.pgconn.consume_input()


def test_a_farewell_that_was_read_before_the_end_was_seen(world: BranchDatabase, raw: Any) -> None:
    end_session(world, raw)
    read(raw)
    session: LibpqSession = raw.session
    with pytest.raises(psycopg.errors.AdminShutdown):
        session.run("select 1")
    with pytest.raises(psycopg.OperationalError, match="no connection"):
        session.run("select 1")


def test_a_session_that_is_cut_without_a_word(raw: Any) -> None:
    session: LibpqSession = raw.session
    session.send("select pg_sleep(60)")
    ours = socket.socket(fileno=raw.pgconn.socket)
    ours.shutdown(socket.SHUT_RDWR)
    ours.detach()
    with pytest.raises(psycopg.OperationalError, match="closed"):
        session.receive()


def test_an_answer_that_is_read_already(raw: Any) -> None:
    """As after an interrupt between reading and looking: it does not wait for what has come."""
    session: LibpqSession = raw.session
    session.send("select 'first'; select 'second'")
    read(raw)
    assert [result.get_value(0, 0) for result in session.receive()] == [b"first", b"second"]


def test_an_answer_of_which_a_part_was_received(raw: Any) -> None:
    session: LibpqSession = raw.session
    session.send("select 'first'; select 'second'")
    read(raw)
    session.results.append(raw.pgconn.get_result())
    assert [result.get_value(0, 0) for result in session.receive()] == [b"first", b"second"]


def test_the_second_answer_comes_later(raw: Any) -> None:
    session: LibpqSession = raw.session
    session.send("select repeat('x', 20000); select pg_sleep(0.3); select 'last'")
    assert session.receive()[-1].get_value(0, 0) == b"last"


def test_notices_do_not_defer_the_deadline(raw: Any) -> None:
    session: LibpqSession = raw.session
    started = time.monotonic()
    with pytest.raises(ReplyTimeout):
        session.run(
            "do $$ begin for i in 1..100 loop raise notice 'still there'; perform pg_sleep(0.03); end loop; end $$",
            started + 0.3,
        )
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("message", ["copy work from stdin", "copy work to stdout", "select 1; copy work from stdin"])
def test_copy_is_an_error_and_not_endless(raw: Any, message: str) -> None:
    with pytest.raises(psycopg.ProgrammingError, match="COPY"):
        raw.session.run(message)
