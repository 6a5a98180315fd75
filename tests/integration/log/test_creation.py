"""A log is made where it is asked for, once, and known again: or it is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.log.tables import NODE, Opener, decided, fences, gtrid_of
from tests.support.log_places import LogPlace
from txpool.config.secrets import Secret
from txpool.errors import LogError
from txpool.log import SqlLog, adopt_log, create_log, open_log


@pytest.mark.costly
def test_17_a_missing_log_is_an_error_and_is_not_made(place: LogPlace) -> None:
    password = Secret(place.password)
    with pytest.raises(LogError, match=r"is missing.*log\.create = true"):
        open_log(place.url("two"), node=NODE, password=password)
    assert place.tables("two") == []
    open_log(place.url("two"), node=NODE, password=password, create=True).close()
    open_log(place.url("two"), node=NODE, password=password).close()


@pytest.mark.parametrize("make", [create_log, adopt_log])
def test_a_server_that_refuses_is_an_error_of_the_log(place: LogPlace, make: Callable[..., object]) -> None:
    wrong = Secret("not the password")
    with pytest.raises(LogError, match=r"could not be (made|adopted): .+ Mend that, and do it again") as refused:
        make(place.url("one"), node=NODE, password=wrong)
    assert "not the password" not in str(refused.value)
    assert place.tables("one") == []


def test_a_log_that_has_lost_its_meta_table_is_not_made_anew(place: LogPlace, log: SqlLog) -> None:
    log.record(gtrid_of(log), [])
    place.execute("one", "DROP TABLE txpool_meta")
    with pytest.raises(LogError, match="already exists"):
        open_log(place.url("one"), node=NODE, password=Secret(place.password), create=True)
    assert len(decided(place)) == 1


def test_many_creators_at_once_make_one_log(place: LogPlace, opener: Opener, apart: ThreadPoolExecutor) -> None:
    together = threading.Barrier(6)

    def create(number: int) -> str:
        together.wait()
        return opener(f"etl-{number}").incarnation

    names = set(apart.map(create, range(6)))
    assert set(fences(place)) == names
    assert len(names) == 6
    assert len(place.rows("one", "SELECT value FROM txpool_meta WHERE name = 'log'")) == 1


def test_17_a_log_that_was_moved_is_refused_until_it_is_adopted(place: LogPlace, opener: Opener) -> None:
    former = opener()
    gtrid = gtrid_of(former)
    former.record(gtrid, [])
    place.execute("one", "UPDATE txpool_meta SET value = '1234/one' WHERE name = 'server'")
    with pytest.raises(LogError, match=r"made on server 1234/one.*init --adopt"):
        opener()
    url, password = place.url("one"), Secret(place.password)
    with pytest.raises(LogError, match=f"in use by incarnation {former.incarnation}: nothing done"):
        adopt_log(url, node=NODE, password=password)
    former.close()
    adopt_log(url, node=NODE, password=password)
    log = opener()
    assert log.incarnations() == {}  # so that its branches are left alone
    assert set(log.decisions()) == {gtrid}


def test_a_log_of_another_format_is_refused(place: LogPlace, opener: Opener, log: SqlLog) -> None:
    place.execute("one", "UPDATE txpool_meta SET value = '2' WHERE name = 'format'")
    with pytest.raises(LogError, match="has format 2; this txpool reads format 1"):
        opener()
