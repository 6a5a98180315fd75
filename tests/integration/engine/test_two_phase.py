"""SQLAlchemy's own two-phase commit over datasources, with no transaction of txpool's around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from txpool.datasource import DataSource
from txpool.engine import create_engine
from txpool.errors import NotSupportedError
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases


class Base(orm.DeclarativeBase):
    pass


class One(Base):
    __tablename__ = "one"

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)


class Two(Base):
    __tablename__ = "two"

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    # Checked at PREPARE, not by the statement.
    other: orm.Mapped[int | None] = orm.mapped_column(sa.ForeignKey("two.id", deferrable=True, initially="DEFERRED"))


@pytest.fixture
def engines(databases: Databases) -> Iterator[list[sa.Engine]]:
    with ExitStack() as stack:
        made = []
        for name, table in (("one", One), ("two", Two)):
            datasource = databases.datasource(name, pool_max_size=1)
            stack.enter_context(datasource)
            engine = create_engine(datasource)
            Base.metadata.create_all(engine, tables=[table.__table__])  # type: ignore[list-item]
            made.append(engine)
        yield made


def counts(databases: Databases) -> list[Any]:
    return [*databases.rows("one", "select id from one"), *databases.rows("two", "select id from two")]


def session(engines: list[sa.Engine]) -> orm.Session:
    return orm.Session(twophase=True, binds={One: engines[0], Two: engines[1]})


def test_a_session_over_two_databases(engines: list[sa.Engine], databases: Databases) -> None:
    with session(engines) as both:
        both.add_all([One(id=1), Two(id=1)])
        both.commit()
        assert counts(databases) == [(1,), (1,)]
        both.add_all([One(id=2), Two(id=2)])
        both.flush()
        both.rollback()
        both.add_all([One(id=3), Two(id=3)])
        both.prepare()
        assert len(databases.prepared()) == 2
        both.rollback()
        assert databases.prepared() == []
        both.add(One(id=4))
        both.commit()
    assert counts(databases) == [(1,), (4,), (1,)]


def test_a_session_of_which_one_database_refuses(engines: list[sa.Engine], databases: Databases) -> None:
    with session(engines) as both:
        both.add_all([One(id=1), Two(id=1, other=7)])
        with pytest.raises(sa.exc.IntegrityError, match="foreign key"):
            both.commit()
        both.rollback()
        both.add_all([One(id=2), Two(id=2)])
        both.commit()
    assert databases.prepared() == []
    assert counts(databases) == [(2,), (2,)]


def test_a_statement_that_failed_is_no_yes(engines: list[sa.Engine], databases: Databases) -> None:
    with engines[0].connect() as connection:
        two_phase = connection.begin_twophase()
        connection.execute(sa.insert(One).values(id=1))
        with pytest.raises(sa.exc.DataError):
            connection.execute(sa.text("select 1/0"))
        with pytest.raises(sa.exc.InternalError, match="is not prepared"):
            two_phase.prepare()
        two_phase.rollback()
        with connection.begin():
            connection.execute(sa.insert(One).values(id=2))
    assert databases.prepared() == []
    assert counts(databases) == [(2,)]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_what_another_session_recovers(
    engines: list[sa.Engine], databases: Databases, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    connection = engines[0].connect()
    two_phase = connection.begin_twophase("mine")
    connection.execute(sa.insert(One).values(id=1))
    two_phase.prepare()
    connection.connection.dbapi_connection.close()  # type: ignore[union-attr]
    assert "transaction mine stays prepared" in caplog.text
    connection.invalidate()
    with engines[0].connect() as other:
        assert other.recover_twophase() == ["mine"]
        getattr(other, f"{end}_prepared")("mine", recover=True)
    assert databases.prepared() == []
    assert counts(databases) == ([(1,)] if end == "commit" else [])


def test_inside_a_transaction_it_is_refused(databases: Databases) -> None:
    where = {"url": databases.url("one"), "password": databases.server.password}
    with DataSource(name="joining", driver="psycopg", managed_commit="join", **where) as datasource:
        with (
            pytest.raises(NotSupportedError, match=r"txpool\.transaction\(\) prepares and commits by itself"),
            transaction(),
            create_engine(datasource).connect() as connection,
        ):
            connection.begin_twophase()
        assert datasource.statistics().taken == 0
    assert databases.prepared() == []
