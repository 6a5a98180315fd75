"""SQLAlchemy's urls that name a datasource's file, and what takes such a url."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
import sqlalchemy as sa
from sqlalchemy import orm

import txpool
from txpool.config.secrets import SecurityWarning
from txpool.datasource import DataSource
from txpool.errors import ConfigurationError, NotSupportedError, ProgrammingError
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases, Require

URL = "txpool:///conf/orders.properties"


@pytest.fixture
def place(tmp_path: Path, databases: Databases, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with a datasource's file in it, as that stands in the documents."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORDERS_PASSWORD", databases.server.password)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/orders.properties").write_text(
        f"name = orders\ndriver = psycopg\nurl = {databases.url('one')}\npassword = ${{env:ORDERS_PASSWORD}}\n"
    )
    databases.datasource("one").close()
    yield tmp_path
    DataSource.from_properties("conf/orders.properties").close()


def rows(databases: Databases) -> list[Any]:
    return databases.rows("one", "select id from fare order by id")


def add(connection: Any, number: int) -> None:
    connection.execute(sa.text("insert into fare values (:id)"), {"id": number})


@pytest.fixture
def fares(place: Path, databases: Databases) -> Databases:
    with txpool.connect("conf/orders.properties") as connection:
        connection.execute("create table fare (id bigint)")
    return databases


def test_an_engine_of_a_url_takes_part(fares: Databases) -> None:
    engine = sa.create_engine(URL)
    assert (engine.dialect.name, engine.dialect.driver, str(engine.url)) == ("postgresql", "psycopg", URL)
    with pytest.raises(ZeroDivisionError), transaction():
        with engine.begin() as connection:
            add(connection, 1)
        raise ZeroDivisionError
    with transaction():
        with engine.begin() as connection:
            add(connection, 2)
        with orm.Session(engine) as session:
            add(session, 3)
            session.commit()
        assert rows(fares) == []
    with engine.begin() as connection:
        add(connection, 4)
        # The dialect's own adapters are in force.
        assert connection.scalar(sa.select(sa.literal({"a": 1}, sa.JSON))) == {"a": 1}
    assert rows(fares) == [(2,), (3,), (4,)]
    assert sa.inspect(engine).get_columns("fare")[0]["name"] == "id"


def test_the_pool_is_the_files_and_it_is_one(fares: Databases, place: Path) -> None:
    datasource = DataSource.from_properties("conf/orders.properties")
    again = sa.create_engine(f"txpool:///{place}/conf/orders.properties")
    with (
        transaction(),
        sa.create_engine(URL).begin() as one,
        again.begin() as two,
        closing(txpool.connect(URL)) as three,
    ):
        add(one, 1)
        add(two, 2)
        three.execute("insert into fare values (3)")
        assert datasource.statistics().taken == 1
    assert rows(fares) == [(1,), (2,), (3,)]
    assert datasource.statistics().created == 1


def test_pandas_and_polars_take_the_url(fares: Databases, require: Require) -> None:
    with transaction():
        pd.DataFrame({"id": [1]}).to_sql("fare", URL, index=False, if_exists="append")
        assert pd.read_sql("select id from fare", URL).id.tolist() == [1]
        assert rows(fares) == []
    assert rows(fares) == [(1,)]
    try:
        import polars as pl
    except ImportError:
        require(False, "polars")
    with transaction():
        pl.DataFrame({"id": [2]}).write_database("fare", URL, if_table_exists="append")
        assert rows(fares) == [(1,)]
    assert rows(fares) == [(1,), (2,)]


def test_a_migration_of_alembics_is_a_part(fares: Databases, place: Path, require: Require) -> None:
    """One that fails takes with it what was done before, and its row of the version."""
    try:
        from alembic import command
        from alembic.config import Config
    except ImportError:
        require(False, "alembic")
    (place / "migrations/versions").mkdir(parents=True)
    (place / "migrations/script.py.mako").write_text("")
    (place / "migrations/env.py").write_text(
        "import sqlalchemy\nfrom alembic import context\n"
        "engine = sqlalchemy.engine_from_config(\n"
        "    context.config.get_section(context.config.config_ini_section), poolclass=sqlalchemy.pool.NullPool)\n"
        "with engine.connect() as connection:\n    context.configure(connection=connection)\n"
        "    with context.begin_transaction():\n        context.run_migrations()\n"
    )
    for name, before, then in (("a1", None, ""), ("b2", "a1", "raise ZeroDivisionError")):
        (place / f"migrations/versions/{name}.py").write_text(
            f"from alembic import op\nimport sqlalchemy as sa\nrevision = {name!r}\ndown_revision = {before!r}\n"
            f"def upgrade():\n    op.create_table('t_{name}', sa.Column('id', sa.Integer))\n    {then}\n"
        )
    config = Config()
    config.set_main_option("script_location", str(place / "migrations"))
    config.set_main_option("sqlalchemy.url", URL)
    with transaction():
        command.upgrade(config, "a1")
        assert "t_a1" in sa.inspect(sa.create_engine(URL)).get_table_names()
        assert rows(fares) == []
    with pytest.raises(ZeroDivisionError), transaction():
        with txpool.connect("conf/orders.properties") as connection:
            connection.execute("insert into fare values (1)")
        command.upgrade(config, "b2")
    assert rows(fares) == []
    assert fares.rows("one", "select version_num from alembic_version") == [("a1",)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"poolclass": sa.QueuePool}, "does not take poolclass or pool"),
        ({"pool": sa.QueuePool(lambda: None)}, "does not take poolclass or pool"),
        ({"connect_args": {"connect_timeout": 1}}, r"does not take connect_args.*driver\.…"),
        ({"creator": lambda: __import__("sqlite3").connect(":memory:")}, "does not take creator"),
    ],
)
def test_what_would_go_past_the_datasource_is_refused(place: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        sa.create_engine(URL, **options).connect()


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("txpool://app:hush@localhost:5432/conf/orders.properties", "username, password, host, port"),
        ("txpool:///conf/orders.properties?password=hush", "query"),
        ("txpool://orders", "host"),
        ("txpool:///", ""),
    ],
)
def test_a_url_is_a_path_and_nothing_else(place: Path, url: str, parts: str) -> None:
    with pytest.raises(ConfigurationError, match=f"path and nothing else.*{parts}") as caught:
        sa.create_engine(url)
    assert "hush" not in str(caught.value)


def test_a_url_names_no_other_database(place: Path) -> None:
    """Neither a connection string, nor a name that is registered: a url out of a configuration reads a file."""
    with DataSource("fares", driver="sqlite3", mode="local", url=f"sqlite:///{place}/x.db") as fares:
        txpool.register(fares)
        for path in ("fares", "sqlite:///x.db", "host=localhost dbname=orders"):
            with pytest.raises(ConfigurationError, match="No such file"):
                sa.create_engine(f"txpool:///{path}")


def test_a_file_is_trusted_as_everywhere(place: Path) -> None:
    path = place / "conf/open.properties"
    path.write_text("name = open\ndriver = psycopg\nmode = xa\nurl = postgresql:///x\npassword = hush\n")
    path.chmod(0o644)
    with pytest.warns(SecurityWarning, match="chmod 600"):
        sa.create_engine("txpool:///conf/open.properties")


def test_an_async_engine_of_a_url_takes_part(fares: Databases) -> None:
    pytest.importorskip("greenlet")
    from sqlalchemy.ext import asyncio as sa_asyncio

    engine = sa_asyncio.create_async_engine(URL)
    assert (engine.dialect.name, engine.dialect.is_async, str(engine.url)) == ("postgresql", True, URL)

    async def work(number: int) -> None:
        async with engine.begin() as connection:
            await connection.execute(sa.text("insert into fare values (:id)"), {"id": number})
        async with sa_asyncio.AsyncSession(engine) as session:
            await session.execute(sa.text("insert into fare values (:id)"), {"id": number + 1})
            await session.commit()

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            async with transaction():
                await work(1)
                raise ZeroDivisionError
        async with transaction():
            await work(3)
            assert rows(fares) == []
        await work(5)
        async with engine.connect() as connection:
            streamed = await connection.stream(sa.text("select id from fare order by id"))
            assert [row.id async for row in streamed] == [3, 4, 5, 6]
        await engine.dispose()

    asyncio.run(main())
    assert rows(fares) == [(3,), (4,), (5,), (6,)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"poolclass": sa.AsyncAdaptedQueuePool}, "does not take poolclass or pool"),
        ({"connect_args": {"connect_timeout": 1}}, r"does not take connect_args"),
    ],
)
def test_an_async_engine_takes_no_more(place: Path, options: dict[str, Any], says: str) -> None:
    pytest.importorskip("greenlet")
    from sqlalchemy.ext.asyncio import create_async_engine

    async def main() -> None:
        async with create_async_engine(URL, **options).connect():
            pass

    with pytest.raises(ConfigurationError, match=says):
        asyncio.run(main())


def test_a_datasource_that_sqlalchemy_cannot_use(place: Path) -> None:
    path = place / "conf/h2.properties"
    path.write_text("name = h2\ndriver = jdbc\nurl = jdbc:h2:mem:x\nmode = xa\n")
    with pytest.raises((NotSupportedError, ConfigurationError)):
        sa.create_engine("txpool:///conf/h2.properties")


def test_its_own_end_stays_refused_elsewhere(fares: Databases) -> None:
    with transaction(), txpool.connect(URL) as connection:
        connection.execute("insert into fare values (1)")
        with pytest.raises(ProgrammingError, match="its work ends with the transaction"):
            connection.commit()
