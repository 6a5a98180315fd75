"""The servers that the other tests stand on keep what is prepared, as those of the field do."""

from __future__ import annotations

import pymysql
import pytest

from tests.support.mysql import MySQLServer


@pytest.mark.crash
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_prepared_branch_survives_its_client_and_the_server(server: MySQLServer, mode: str) -> None:
    server.execute("create table t (id int primary key)", database="one")
    connection = server.connect("one")
    with connection.cursor() as cursor:
        for statement in ("xa start 'g','b',7", "insert into t values (1)", "xa end 'g','b',7", "xa prepare 'g','b',7"):
            cursor.execute(statement)
    connection.close()
    server.restart(mode)
    assert server.prepared() == [(7, 1, 1, b"gb")]
    server.execute("xa commit 'g','b',7")
    assert server.execute("select id from t", database="one") == [(1,)]


def test_emptying_rolls_back_what_a_living_session_has_prepared(server: MySQLServer) -> None:
    server.execute("create table t (id int primary key)", database="one")
    connection = server.connect("one")
    with connection.cursor() as cursor:
        for statement in ("xa start 'g','b',7", "insert into t values (1)", "xa end 'g','b',7", "xa prepare 'g','b',7"):
            cursor.execute(statement)
    server.empty()
    assert server.prepared() == []
    with pytest.raises(pymysql.Error):
        connection.ping(reconnect=False)
