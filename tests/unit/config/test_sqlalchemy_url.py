"""A url of SQLAlchemy's, with a driver in it, is answered with the url to write here."""

from __future__ import annotations

import pytest

import txpool
from txpool.config.properties import Properties
from txpool.config.settings import CoordinatorSettings, DataSourceSettings
from txpool.config.sqlalchemy_url import sqlalchemy_advice
from txpool.engine import create_engine


@pytest.mark.parametrize(
    ("url", "write", "blocking"),
    [
        ("postgresql+asyncpg://app:hunter2@localhost/orders", "postgresql://", True),
        ("postgresql+psycopg_async://app@localhost/orders", "postgresql://", True),
        ("postgresql+psycopg2://app:hunter2@localhost/orders", "postgresql://", False),
        ("postgresql+psycopg://app@localhost/orders", "postgresql://", False),
        ("postgresql+pg8000://app@localhost/orders", "postgresql://", False),
        ("postgres+psycopg2://app@localhost/orders", "postgresql://", False),
        ("mysql+pymysql://app:hunter2@localhost/shop", "mysql://", False),
        ("mysql+mysqldb://app@localhost/shop", "mysql://", False),
        ("mysql+aiomysql://app@localhost/shop", "mysql://", True),
        ("mysql+asyncmy://app@localhost/shop", "mysql://", True),
        ("mariadb+mariadbconnector://app@localhost/shop", "mariadb://", False),
        ("sqlite+aiosqlite:///orders.db", "sqlite:///", True),
        ("sqlite+pysqlite:///orders.db", "sqlite:///", False),
    ],
)
def test_connect_says_what_to_write(url: str, write: str, *, blocking: bool) -> None:
    for opening in (txpool.connect, create_engine):
        with pytest.raises(txpool.ConfigurationError) as caught:
            opening(url)
        told = str(caught.value)
        assert f"{url.partition('+')[0]}+" in told
        assert f"is SQLAlchemy's, with a driver in it: write {write}, and behind it the same" in told
        assert ("awaits txpool.aconnect(…)" in told) is blocking
        assert "hunter2" not in told


def test_a_database_that_is_reached_over_jdbc_alone() -> None:
    with pytest.raises(txpool.ConfigurationError, match="oracle is reached over JDBC alone"):
        txpool.connect("oracle+oracledb://app@host/x")


def test_in_a_file() -> None:
    file = Properties.parse("name = a\ndriver = psycopg\nurl = postgresql+asyncpg://app:hunter2@h/db\n")
    with pytest.raises(
        txpool.ConfigurationError, match=r"is no url for psycopg: .*: write postgresql://, and"
    ) as caught:
        DataSourceSettings.load(file)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(txpool.ConfigurationError, match=r"cannot name a log: .*: write sqlite:///, and behind it"):
        CoordinatorSettings.load(node_name="a", log_url="sqlite+aiosqlite:///txlog")


@pytest.mark.parametrize("text", ["orders", "conf/a+b.properties", "postgresql://h/db", "host=a+b dbname=c", "a+b"])
def test_what_is_no_such_url(text: str) -> None:
    assert not sqlalchemy_advice(text)
