"""A server that cannot be reached: everybody is told at once, and nobody rushes on it when it is back."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress

import psycopg
import pytest

import txpool
from txpool.datasource import DataSource


def test_a_wrong_password_is_said_at_once_to_everybody(pooled: Callable[..., DataSource]) -> None:
    datasource = pooled(password="wrong", pool_max_size=2, pool_max_wait=3600)
    with ThreadPoolExecutor(20) as threads:
        results = [threads.submit(datasource.connect) for _ in range(20)]
        for result in results:
            error = result.exception(60)
            assert isinstance(error, psycopg.OperationalError | txpool.OperationalError)
            assert "password authentication failed" in str(error)
            assert "datasource one" in str(error)
            assert str(error).count("datasource one") == 1


@pytest.mark.parametrize("host", ["127.0.0.1:1", "no-such-host.invalid:5432"])
def test_a_wrong_host_is_said_at_once_to_everybody(pooled: Callable[..., DataSource], host: str) -> None:
    datasource = pooled(url=f"postgresql://app@{host}/one", pool_max_size=2, pool_max_wait=3600)
    with ThreadPoolExecutor(20) as threads:
        results = [threads.submit(datasource.connect) for _ in range(20)]
        assert all(isinstance(result.exception(60), psycopg.OperationalError) for result in results)
    assert datasource.statistics().failure


class Away:
    """A port where a server is away: it hangs up on whoever comes, and counts them."""

    def __init__(self) -> None:
        self.came = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.came += 1
                time.sleep(0.02)
                connection.close()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def away() -> Iterator[Away]:
    with closing(Away()) as it:
        yield it


def test_thirty_who_wait_do_not_rush_on_a_server_that_is_away(pooled: Callable[..., DataSource]) -> None:
    """As many try as there are places; all hear why."""
    with away() as server, ThreadPoolExecutor(30) as threads:
        datasource = pooled(url=f"postgresql://app@127.0.0.1:{server.port}/one", pool_max_size=4, pool_max_wait=60)
        start = threading.Barrier(30)

        def work() -> None:
            start.wait()
            datasource.connect()

        results = [threads.submit(work) for _ in range(30)]
        assert all(isinstance(result.exception(60), psycopg.OperationalError) for result in results)
        # Who comes only when the first have failed already tries by himself.
        assert server.came < 30, server.came


def test_the_background_backs_off(pooled: Callable[..., DataSource]) -> None:
    with away() as server:
        datasource = pooled(url=f"postgresql://app@127.0.0.1:{server.port}/one", pool_min_size=4, pool_max_size=4)
        time.sleep(3)
        # Attempts after 0, 0.1, 0.3, 0.7, 1.5 and 3.1 seconds; libpq may try an address twice, with and without TLS.
        assert 2 <= server.came <= 12, server.came
        datasource.close()
