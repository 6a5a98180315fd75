"""PEP 249 by the tests of dbapi-compliance, over H2."""

from __future__ import annotations

import uuid
from typing import ClassVar

import dbapi20
import pytest

from tests.support.jdbc import Jars, JdbcDatabase, h2
from txpool.resources.jdbc.dbapi import module
from txpool.resources.jdbc.dbapi.connection import JdbcConnection


class TestJdbc(dbapi20.DatabaseAPI20Test):
    driver = module
    database: ClassVar[JdbcDatabase]

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def over_h2(cls, jdbc_jars: Jars) -> None:
        cls.database = h2(jdbc_jars, f"mem:{uuid.uuid4()}")

    def _connect(self) -> JdbcConnection:
        return self.database.connect()

    def test_non_idempotent_close(self) -> None:
        connection = self._connect()
        connection.close()
        connection.close()  # as most drivers have it
        with pytest.raises(module.InterfaceError):
            connection.commit()

    def test_nextset(self) -> None:
        cursor = self._connect().cursor()
        assert cursor.execute("select 1").nextset() is None

    def test_setoutputsize(self) -> None:
        cursor = self._connect().cursor()
        cursor.setoutputsize(1000)
        cursor.setoutputsize(2000, 0)
