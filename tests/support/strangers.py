"""Two roles of PostgreSQL: `app`, whose datasources and log these are, and `mallory`, who may connect and owns nothing.

Both may create schemas in the databases, and neither is more than a role that may log in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

if TYPE_CHECKING:
    from tests.conftest import Databases

ROLES = ("app", "mallory")


class Strangers:
    """Sessions of either, in one of the two databases."""

    def __init__(self, databases: Databases) -> None:
        self.databases = databases
        self.password = databases.server.password

    def url(self, role: str = "app", database: str = "one") -> str:
        return self.databases.url(database).replace(f"//{self.databases.server.user}@", f"//{role}@")

    def connect(self, role: str, database: str = "one", **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """In autocommit mode, unless told otherwise."""
        return psycopg.connect(self.url(role, database), password=self.password, **{"autocommit": True} | options)

    @contextmanager
    def session(self, role: str, database: str = "one") -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        with self.connect(role, database) as connection:
            yield connection

    def does(self, role: str, *statements: str, database: str = "one") -> None:
        with self.session(role, database) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def admin(self, *statements: str, database: str = "one") -> None:
        """As a superuser."""
        with psycopg.connect(self.databases.dsn(database), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())


#: What mallory's functions do when somebody runs them: they tell as whom. The table is there for all to write.
EVIL = (
    "create schema evil",
    "grant usage on schema evil to public",
    "create table evil.ran (as_whom text)",
    "grant insert on evil.ran to public",
    "create function evil.tell() returns trigger language plpgsql as "
    "$$ begin insert into evil.ran values (current_user); return new; end $$",
    "create function evil.value() returns integer language plpgsql volatile as "
    "$$ begin insert into evil.ran values (current_user); return 1; end $$",
)


def ran(databases: Databases, database: str = "one") -> list[tuple[Any, ...]]:
    """As whom mallory's functions have been run."""
    return databases.rows(database, "select as_whom from evil.ran")


@pytest.fixture
def strangers(databases: Databases) -> Iterator[Strangers]:
    it = Strangers(databases)
    _forget(it)
    for role in ROLES:
        it.admin(f"create role {role} login password '{it.password}'")
        for database in ("one", "two"):
            it.admin(f"grant create on database {database} to {role}", database=database)
    for database in ("one", "two"):
        it.admin("grant usage on schema public to public", "grant create on schema public to app", database=database)
    yield it
    _forget(it)


def _forget(it: Strangers) -> None:
    for database in ("two", "one"):
        for (gid,) in it.databases.rows(
            database, "select gid from pg_prepared_xacts where database = current_database()"
        ):
            it.admin(f"rollback prepared '{gid}'", database=database)
        for role in ROLES:
            it.databases.rows(
                database, "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = %s", [role]
            )
            if it.databases.rows(database, "select 1 from pg_roles where rolname = %s", [role]):
                it.admin(f"drop owned by {role} cascade", database=database)
    for role in ROLES:
        it.admin(f"drop role if exists {role}")
