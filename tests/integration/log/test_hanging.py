"""Sessions of the log that hang, as those of a datasource may: what is written goes over another, or is refused."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.log.tables import NODE, decided, gtrid_of
from tests.support.log_places import LogPlace
from tests.support.proxy import NetworkFault, Proxy
from txpool.config.secrets import Secret
from txpool.errors import LogError
from txpool.log import Refused, SqlLog

if TYPE_CHECKING:
    from tests.conftest import Databases

#: Seconds until something that ought to have come by itself is given up.
_TIMEOUT = 45
_SESSIONS = "select pid from pg_stat_activity where application_name = 'txpool log'"


@pytest.fixture
def proxy(place: LogPlace) -> Iterator[Proxy]:
    with closing(Proxy(place.server.port, mysql=place.kind != "postgresql")) as proxy:
        yield proxy


def within(work: Callable[[], Any]) -> Any:
    """What the work returns or raises, within the test's timeout."""
    ended: queue.Queue[Any] = queue.Queue()

    def run() -> None:
        try:
            ended.put(work())
        except BaseException as error:
            ended.put(error)

    threading.Thread(target=run, daemon=True).start()
    found = ended.get(timeout=_TIMEOUT)
    if isinstance(found, BaseException):
        raise found
    return found


def opened(place: LogPlace, port: int) -> SqlLog:
    """The log over that port, whose idle sessions are always looked at, and which waits for two seconds."""
    url = place.url().replace(f":{place.server.port}/", f":{port}/")
    url += "" if place.kind == "postgresql" else "?ssl_disabled=true"
    log = SqlLog(url, node=NODE, create=True, password=Secret(place.password))
    log._sessions._pool._check_bypass = 0.0
    log._sessions._pool.max_wait = 2.0
    return log


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)  # where each session is a process
def test_a_decision_goes_past_a_session_that_stands_still(databases: Databases, place: LogPlace) -> None:
    with closing(opened(place, place.server.port)) as log:
        first, second = gtrid_of(log, 1), gtrid_of(log, 2)
        log.record(first, [])
        stopped = [pid for (pid,) in databases.rows("two", _SESSIONS)]
        assert stopped
        try:
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            within(lambda: log.record(second, []))
            assert decided(databases) == {first, second}
        finally:
            for pid in stopped:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        assert log._sessions._pool.statistics().check_failures == len(stopped)


@pytest.mark.slow
def test_a_decision_is_refused_where_no_packet_comes_back(place: LogPlace, proxy: Proxy) -> None:
    """Nothing of it was sent: the transaction rolls back, and is not in doubt."""
    with closing(opened(place, proxy.port)) as log:
        gtrid = gtrid_of(log)
        log.forget(gtrid_of(log, 2))
        proxy.go_dark()
        with pytest.raises(Refused, match=r"nothing was written"):
            within(lambda: log.record(gtrid, []))
        assert decided(place) == set()
        assert log._sessions._pool.statistics().size == 0
        proxy.heal()


def test_a_server_that_lets_in_and_then_says_nothing_is_a_definite_failure(place: LogPlace, proxy: Proxy) -> None:
    with closing(opened(place, proxy.port)) as log:
        log._sessions._pool.drain()
        proxy.fail_at(b"txpool_meta", NetworkFault.BLACK_HOLE)
        with pytest.raises(LogError, match="nothing was written"):
            within(log.finished)
        assert proxy.failed.wait(60)
        proxy.heal()
        assert within(log.finished) == set()
