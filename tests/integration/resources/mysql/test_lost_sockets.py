"""mysqlclient closes the socket of a session that is lost: its number may then be another file's."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.resources.mysql.branches import BranchDatabase
from tests.support.mysql import MySQLServer

if TYPE_CHECKING:
    from tests.support.mysql import RequireDriver


@pytest.fixture
def lost(mariadb: MySQLServer, require_driver: RequireDriver) -> Iterator[Any]:
    """A connection whose driver has seen that its session is lost."""
    require_driver("mysqlclient")
    mariadb.empty()
    with closing(BranchDatabase(mariadb, "mysqlclient")) as world:
        raw = world.driver.connect()
        mariadb.execute(f"kill {raw.session_number}")
        for _ in range(2):
            with suppress(world.module.Error):
                raw.query("select 1")
        yield raw


def test_a_connection_says_that_it_is_closed_as_the_drivers_own_does(lost: Any, mariadb: MySQLServer) -> None:
    mariadb.empty()
    with closing(BranchDatabase(mariadb, "mysqlclient").driver.connect()) as raw:
        assert not raw.closed
        raw.close()
        assert raw.closed
    assert lost.closed == (not lost.open)


def test_a_lost_connection_does_not_shut_anothers_socket(lost: Any) -> None:
    mine, peer = socket.socketpair()
    with mine, peer:
        assert lost._descriptor in (mine.fileno(), peer.fileno())
        lost.break_off()
        mine.sendall(b"x")
        assert peer.recv(1) == b"x"


def test_a_forked_child_keeps_what_has_the_number_of_a_lost_socket(lost: Any) -> None:
    mine, peer = socket.socketpair()
    with mine, peer:
        assert lost._descriptor in (mine.fileno(), peer.fileno())
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                mine.sendall(b"x")
                os._exit(peer.recv(1) != b"x")
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
