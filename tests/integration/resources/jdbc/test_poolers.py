"""A pooler before MariaDB, over JDBC: the Java driver tells what it was greeted with."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.check.place import checked
from tests.support.jdbc_places import JdbcPlaces
from tests.support.mysql_pooler import MySQLPooler, Pooling
from txpool import DataSource
from txpool.resources.jdbc.databases.mariadb import MariaDB, MySQLSession
from txpool.resources.mysql.session.pooler import BehindPooler

if TYPE_CHECKING:
    from tests.support.mysql import MySQLServer

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("pooling", Pooling, ids=lambda pooling: pooling.name.lower())
@pytest.mark.parametrize("mode", ["xa", "cmr", "last-resource", "local"])
def test_no_mode_goes_through_one(
    jdbc_places: JdbcPlaces, mariadb: MySQLServer, mode: str, pooling: Pooling, tmp_path: Path
) -> None:
    """In mode = local neither: to give up a statement, the Java driver itself sends KILL with the pooler's number."""
    mariadb.empty()
    with closing(MySQLPooler(mariadb, pooling)) as pooler:
        file = jdbc_places.file("mariadb", mode, url=f"jdbc:mariadb://127.0.0.1:{pooler.port}/one")
        with (
            closing(DataSource.from_properties(file)) as source,
            pytest.raises(BehindPooler, match="lead to the server"),
        ):
            source.connect()
        answer = checked(file)
        assert [finding["severity"] for finding in answer.about("pooler")] == ["wrong"]
    assert mariadb.execute("show databases like 'txpool'") == []


def test_the_server_itself_has_greeted_the_driver(jdbc_places: JdbcPlaces, mariadb: MySQLServer) -> None:
    source = jdbc_places.open("mariadb")
    raw = source.driver_adapter.connect()
    try:
        session = MySQLSession(raw)
        assert session.run("select connection_id()") == ((raw.session_number,),)
        assert isinstance(raw.database, MariaDB)
    finally:
        source.driver_adapter.close(raw)
    assert checked(jdbc_places.file("mariadb", name="again")).about("pooler") == []
