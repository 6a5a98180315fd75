"""What is no fault of a statement, and so of no message that a consumer had."""

from __future__ import annotations

from contextlib import closing

import pytest

import txpool
from tests.support.jdbc_places import JdbcPlaces
from txpool.idempotency.outage import is_outage


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "h2"])
def test_a_login_that_is_refused(jdbc_places: JdbcPlaces, kind: str) -> None:
    """A password that was changed: a consumer parked all messages for it."""
    with closing(jdbc_places.open(kind)) as source, closing(source.connect()) as connection:
        wrong = txpool.DataSource.from_properties(jdbc_places.file(kind, name="wrong", Password="wrong"))
        with closing(wrong), pytest.raises(txpool.OperationalError) as refused:
            wrong.connect()
        assert is_outage(refused.value)
        with pytest.raises(txpool.ProgrammingError) as missing:
            connection.cursor().execute("select * from nothing")
        assert not is_outage(missing.value)


@pytest.mark.parametrize(
    ("kind", "raises"),
    [
        *(
            ("postgresql", f"do $$ begin raise exception 'c' using errcode = '{state}'; end $$")
            for state in ("25006", "53100", "53300", "55P03", "58030")
        ),
        *(
            ("mariadb", f"signal sqlstate 'HY000' set mysql_errno = {code}, message_text = 'm'")
            for code in (1021, 1114, 1290, 1836)
        ),
    ],
)
def test_a_server_that_takes_no_writes_now(jdbc_places: JdbcPlaces, kind: str, raises: str) -> None:
    with pytest.raises(txpool.DatabaseError) as refused, closing(jdbc_places.open(kind).connect()) as connection:
        connection.cursor().execute(raises)
    assert is_outage(refused.value)
