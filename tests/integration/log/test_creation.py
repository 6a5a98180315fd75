"""A log is made where it is asked for, once, and known again: or it is refused."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.integration.log.tables import NODE, Opener, decided, fences, gtrid_of
from txpool.config.secrets import Secret
from txpool.errors import LogError
from txpool.log import SqlLog, adopt_log, open_log

if TYPE_CHECKING:
    from tests.conftest import Databases


def test_17_a_missing_log_is_an_error_and_is_not_made(databases: Databases) -> None:
    password = Secret(databases.server.password)
    with pytest.raises(LogError, match=r"is missing.*log\.create = true"):
        open_log(databases.url("two"), node=NODE, password=password)
    assert databases.rows("two", "SELECT relname FROM pg_class WHERE relname LIKE 'txpool%%'") == []
    open_log(databases.url("two"), node=NODE, password=password, create=True).close()
    open_log(databases.url("two"), node=NODE, password=password).close()


def test_a_log_that_has_lost_its_meta_table_is_not_made_anew(databases: Databases, log: SqlLog) -> None:
    log.record(gtrid_of(log), [])
    databases.execute("one", "DROP TABLE txpool_meta")
    with pytest.raises(LogError, match="already exists"):
        open_log(databases.url("one"), node=NODE, password=Secret(databases.server.password), create=True)
    assert len(decided(databases)) == 1


def test_many_creators_at_once_make_one_log(databases: Databases, opener: Opener, apart: ThreadPoolExecutor) -> None:
    together = threading.Barrier(6)

    def create(number: int) -> str:
        together.wait()
        return opener(f"etl-{number}").incarnation

    names = set(apart.map(create, range(6)))
    assert set(fences(databases)) == names
    assert len(names) == 6
    assert len(databases.rows("one", "SELECT value FROM txpool_meta WHERE name = 'log'")) == 1


def test_17_a_log_that_was_moved_is_refused_until_it_is_adopted(databases: Databases, opener: Opener) -> None:
    former = opener()
    gtrid = gtrid_of(former)
    former.record(gtrid, [])
    databases.execute("one", "UPDATE txpool_meta SET value = '1234/one' WHERE name = 'server'")
    with pytest.raises(LogError, match=r"made on server 1234/one.*init --adopt"):
        opener()
    url, password = databases.url("one"), Secret(databases.server.password)
    with pytest.raises(LogError, match=f"in use by incarnation {former.incarnation}: nothing done"):
        adopt_log(url, node=NODE, password=password)
    former.close()
    adopt_log(url, node=NODE, password=password)
    log = opener()
    assert log.incarnations() == {}  # so that its branches are left alone
    assert set(log.decisions()) == {gtrid}


def test_a_log_of_another_format_is_refused(databases: Databases, opener: Opener, log: SqlLog) -> None:
    databases.execute("one", "UPDATE txpool_meta SET value = '2' WHERE name = 'format'")
    with pytest.raises(LogError, match="has format 2; this txpool reads format 1"):
        opener()
