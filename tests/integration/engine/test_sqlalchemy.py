"""SQLAlchemy over a datasource: with no transaction around, and inside one (managed.commit=join)."""

from __future__ import annotations

import json
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from tests.integration.engine.table import EngineTable
from txpool.datasource import DataSource
from txpool.engine import create_engine
from txpool.errors import ConfigurationError, ProgrammingError, TransactionRolledBack
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases
    from tests.integration.conftest import Joining


class Base(orm.DeclarativeBase):
    pass


class Fare(Base):
    __tablename__ = "fare"

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(sa.String(20), unique=True)


@pytest.fixture
def fares(joining: Joining) -> EngineTable:
    table = EngineTable(*joining, name="fare")
    table.execute("create table fare (id integer primary key, name varchar(20) unique)")
    return table


def test_core(fares: EngineTable) -> None:
    with fares.engine.begin() as connection:
        connection.execute(sa.insert(Fare), [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    with pytest.raises(ZeroDivisionError), fares.engine.begin() as connection:
        connection.execute(sa.insert(Fare).values(id=3, name="lost"))
        raise ZeroDivisionError
    with fares.engine.connect() as connection:
        connection.execute(sa.insert(Fare).values(id=4, name="lost"))
        assert connection.scalar(sa.select(sa.func.count(Fare.id))) == 3
    assert fares.read() == [(1, "a"), (2, "b")]
    assert fares.datasource.statistics().taken == 0


def test_core_inside_a_transaction(fares: EngineTable) -> None:
    with transaction():
        with fares.engine.begin() as connection:
            connection.execute(sa.insert(Fare).values(id=1, name="a"))
        with pytest.raises(ZeroDivisionError), fares.engine.begin() as connection:
            connection.execute(sa.insert(Fare).values(id=2, name="lost"))
            raise ZeroDivisionError
        with fares.engine.connect() as connection:
            assert connection.scalars(sa.select(Fare.name)).all() == ["a"]
            with pytest.raises(sa.exc.IntegrityError):
                connection.execute(sa.insert(Fare).values(id=1, name="again"))
        with fares.engine.connect() as connection, connection.begin():
            connection.execute(sa.insert(Fare).values(id=3, name="c"))
            with connection.begin_nested() as nested:
                connection.execute(sa.insert(Fare).values(id=4, name="lost"))
                nested.rollback()
        assert fares.read() == []
    assert fares.read() == [(1, "a"), (3, "c")]


def test_what_the_engine_committed_goes_with_the_transaction(fares: EngineTable) -> None:
    with pytest.raises(ZeroDivisionError), transaction():
        with fares.engine.begin() as connection:
            connection.execute(sa.insert(Fare).values(id=1, name="lost"))
        raise ZeroDivisionError
    assert fares.read() == []


@pytest.mark.parametrize("inside", [False, True])
def test_a_session(fares: EngineTable, inside: bool) -> None:
    def work() -> None:
        with orm.Session(fares.engine) as session:
            session.add_all([Fare(id=1, name="a"), Fare(id=2, name="b")])
            session.commit()
            session.add(Fare(id=3, name="lost"))
            session.flush()
            session.rollback()
            session.add(Fare(id=4, name="a"))
            with pytest.raises(sa.exc.IntegrityError):
                session.commit()
            session.rollback()
            fare = session.scalars(sa.select(Fare).where(Fare.name == "b")).one()
            fare.name = "c"
            session.commit()
            session.add(Fare(id=5, name="lost"))
            session.flush()

    if inside:
        with transaction():
            work()
            assert fares.read() == []
    else:
        work()
    assert fares.read() == [(1, "a"), (2, "c")]


def test_a_session_around_transactions(fares: EngineTable) -> None:
    with orm.Session(fares.engine) as session:
        for number in (1, 2):
            with transaction():
                session.add(Fare(id=number, name=str(number)))
                session.commit()
                assert len(fares.read()) == number - 1
    assert fares.read() == [(1, "1"), (2, "2")]


def test_two_sessions_that_overlap(fares: EngineTable) -> None:
    with (
        pytest.raises(TransactionRolledBack, match="what another has done since"),
        transaction(),
        orm.Session(fares.engine) as first,
        orm.Session(fares.engine) as second,
    ):
        first.add(Fare(id=1, name="a"))
        first.flush()
        second.add(Fare(id=2, name="b"))
        second.commit()
        with pytest.raises(ProgrammingError, match="what another has done since"):
            first.rollback()
    assert fares.read() == []


def test_returning_reflection_and_streaming(fares: EngineTable) -> None:
    with transaction(), fares.engine.begin() as connection:
        assert connection.scalars(sa.insert(Fare).values(id=1, name="a").returning(Fare.id)).one() == 1
        assert "fare" in sa.inspect(connection).get_table_names()
        rows = connection.execution_options(stream_results=True).execute(sa.select(Fare.name))
        assert rows.all() == [("a",)]
    assert fares.read() == [(1, "a")]


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"pool_size": 5}, "pool.max-size"),
        ({"poolclass": sa.QueuePool}, "its keys begin with pool."),
        ({"connect_args": {"application_name": "fares"}}, r"set driver\.… for each in its file"),
        ({"client_encoding": "utf8"}, r"set driver\.client_encoding in its file"),
    ],
)
def test_connections_and_their_pool_are_the_datasources(fares: EngineTable, option: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"datasource fares.*{says}"):
        create_engine(fares.datasource, **option)


def test_an_isolation_level_is_set_once_for_all_that_join(databases: Databases) -> None:
    options: dict[str, Any] = {"name": "fares", "managed_commit": "join", "driver": "psycopg"}
    options |= {"url": databases.url("one"), "password": databases.server.password}
    with DataSource(**options) as datasource:
        engine = create_engine(datasource, isolation_level="REPEATABLE READ")
        shown: list[str] = []
        with transaction():
            for _ in range(2):
                with engine.begin() as connection:
                    shown += connection.scalars(sa.text("show transaction_isolation"))
        assert shown == ["repeatable read"] * 2


def test_a_connection_sets_an_isolation_level(databases: Databases) -> None:
    """Inside a transaction it is the transaction's, and outside one the connection's alone."""
    options: dict[str, Any] = {"name": "fares", "driver": "psycopg", "pool_max_size": 1}
    options |= {"url": databases.url("one"), "password": databases.server.password}
    with DataSource(**options) as datasource:
        engine = create_engine(datasource)
        shown: list[str] = []

        def show(level: str = "SERIALIZABLE") -> None:
            with engine.connect().execution_options(isolation_level=level) as connection:
                shown.extend(connection.scalars(sa.text("show transaction_isolation")))
                connection.commit()

        show()
        with transaction():
            show()
            show()
            with pytest.raises(psycopg.ProgrammingError, match=r"which has begun there\. Set it before .*isolation="):
                show("REPEATABLE READ")
        with engine.connect() as connection:
            shown += connection.scalars(sa.text("show transaction_isolation"))
        assert shown == ["serializable", "serializable", "serializable", "read committed"]


def test_autocommit(fares: EngineTable) -> None:
    with fares.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.insert(Fare).values(id=1, name="a"))
        assert fares.read() == [(1, "a")]
    with pytest.raises(ZeroDivisionError), transaction():
        with fares.engine.connect() as connection, pytest.raises(Exception, match="owns"):
            connection.execution_options(isolation_level="AUTOCOMMIT")
        raise ZeroDivisionError
    with fares.engine.begin() as connection:  # the pool's connection is as it was
        connection.execute(sa.insert(Fare).values(id=2, name="b"))
    assert fares.read() == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("inside", [False, True])
def test_json_is_read_and_written_as_the_engine_is_told(fares: EngineTable, inside: bool) -> None:
    engine = create_engine(
        fares.datasource,
        json_serializer=lambda value: json.dumps(["written", value]),
        json_deserializer=lambda text: ["read", *json.loads(text)],
    )
    statement = sa.select(sa.literal("it", sa.JSON))
    with transaction() if inside else nullcontext(), engine.connect() as connection:
        assert connection.scalar(statement) == ["read", "written", "it"]
    if fares.datasource.driver == "psycopg":  # nobody else reads so
        with closing(fares.datasource.connect()) as plain:
            assert plain.execute("select '[1]'::json").fetchone() == ([1],)


def test_a_connection_that_was_closed_beneath_is_taken_for_lost(fares: EngineTable) -> None:
    with fares.engine.connect() as connection:
        assert connection.connection.dbapi_connection is not None
        connection.connection.dbapi_connection.close()
        with pytest.raises(sa.exc.DBAPIError) as caught:
            connection.execute(sa.select(1))
        assert caught.value.connection_invalidated
        connection.rollback()
        assert connection.scalar(sa.select(1)) == 1
