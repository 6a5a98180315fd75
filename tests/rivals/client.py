"""A client of a contender: each number that it reads it transfers from one database to the other, and says so.

It runs as `python -m tests.rivals.client CONTENDER URL URL`. A transfer that has failed it tries again, as a scheduler
does with a task; what its contender then says of it is for the databases to show.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.rivals.contenders import PASSWORD
from tests.rivals.spark_client import with_spark_jdbc, with_txpool_spark

Transfer = Callable[[int], object]
_TRIES = 5


def with_txpool(urls: list[str]) -> Transfer:
    import txpool

    txpool.configure("txpool.properties")

    async def transfer(number: int) -> None:
        once = {"transaction_id": str(number), "record_in": "one.properties"}
        try:
            async with txpool.transaction(**once):
                for name in ("one", "two"):
                    async with await txpool.aconnect(f"{name}.properties") as connection:
                        await connection.execute("insert into t (number) values (%s)", (number,))
        except txpool.AlreadyDone:
            pass

    return _in_loop(transfer)


def with_xa_recovery(urls: list[str]) -> Transfer:
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy_xa_recovery import async_two_phase_session

    one, two = _tables()
    password = {"password": os.environ[PASSWORD]}
    binds: dict[type[Any], Any] = {
        table: create_async_engine(_sqlalchemy(url), connect_args=password)
        for table, url in zip((one, two), urls, strict=True)
    }

    async def transfer(number: int) -> None:
        async with async_two_phase_session(binds) as session:
            session.add_all((one(number=number), two(number=number)))
            await session.commit()

    return _in_loop(transfer)


def with_twophase(urls: list[str]) -> Transfer:
    """Session(twophase=True), of SQLAlchemy's page on transactions."""
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    one, two = _tables()
    password = {"password": os.environ[PASSWORD]}
    engines = [create_engine(_sqlalchemy(url), connect_args=password) for url in urls]
    binds: dict[Any, Any] = dict(zip((one, two), engines, strict=True))

    def transfer(number: int) -> None:
        with Session(twophase=True, binds=binds) as session:
            session.add_all((one(number=number), two(number=number)))
            session.commit()

    return transfer


def with_zope(urls: list[str]) -> Transfer:
    """A data manager over psycopg's calls of PEP 249 for two-phase commit, as transaction's interface asks for it."""
    import psycopg
    import transaction

    class Database:
        transaction_manager = transaction.manager

        def __init__(self, place: int, number: int) -> None:
            self._name = f"{place}"
            self.connection = psycopg.connect(urls[place], password=os.environ[PASSWORD])
            self.connection.tpc_begin(self.connection.xid(1, f"zope-{number}-{time.time_ns()}", self._name))
            self.connection.execute("insert into t (number) values (%s)", (number,))

        def sortKey(self) -> str:
            return self._name

        def abort(self, _: object) -> None:
            self.connection.close()

        def tpc_begin(self, _: object) -> None:
            pass

        def commit(self, _: object) -> None:
            pass

        def tpc_vote(self, _: object) -> None:
            self.connection.tpc_prepare()

        def tpc_finish(self, _: object) -> None:
            self.connection.tpc_commit()
            self.connection.close()

        def tpc_abort(self, _: object) -> None:
            if not self.connection.closed:
                self.connection.tpc_rollback()
                self.connection.close()

    def transfer(number: int) -> None:
        with transaction.manager as current:
            for place in (0, 1):
                current.join(Database(place, number))

    return transfer


def with_django(urls: list[str]) -> Transfer:
    from django.conf import settings
    from django.db import connections, transaction

    def described(url: str) -> dict[str, object]:
        from urllib.parse import urlsplit

        found = urlsplit(url)
        place = {"HOST": found.hostname, "PORT": found.port, "NAME": found.path[1:]}
        return {"ENGINE": "django.db.backends.postgresql", "USER": found.username} | place | {"PASSWORD": secret}

    secret = os.environ[PASSWORD]
    settings.configure(DATABASES={"default": described(urls[0]), "two": described(urls[1])})

    def transfer(number: int) -> None:
        try:
            with transaction.atomic(using="default"), transaction.atomic(using="two"):
                for name in ("default", "two"):
                    connections[name].cursor().execute("insert into t (number) values (%s)", (number,))
        finally:
            for each in connections.all():
                each.close_if_unusable_or_obsolete()

    return transfer


def _sqlalchemy(url: str) -> str:
    return url.replace("postgresql:", "postgresql+psycopg:")


def _tables() -> tuple[type[Any], type[Any]]:
    """The table `t` of each database, each in a metadata of its own."""
    from sqlalchemy import Integer
    from sqlalchemy.orm import declarative_base, mapped_column

    def table(name: str) -> type[Any]:
        columns = {each: mapped_column(Integer, primary_key=each == "id") for each in ("id", "number")}
        return type(name, (declarative_base(),), {"__tablename__": "t", **columns})

    return table("One"), table("Two")


def _in_loop(transfer: Callable[[int], Awaitable[None]]) -> Transfer:
    runner = asyncio.Runner()
    return lambda number: runner.run(transfer(number))  # type: ignore[arg-type]


CLIENTS: dict[str, Callable[[list[str]], Transfer]] = {
    "txpool": with_txpool,
    "sqlalchemy-xa-recovery": with_xa_recovery,
    "sqlalchemy": with_twophase,
    "transaction": with_zope,
    "django": with_django,
    "spark-jdbc": with_spark_jdbc,
    "txpool-spark": with_txpool_spark,
}


def insist(transfer: Transfer, number: int) -> str:
    """Until it does not fail any more; what is said of its end."""
    for _ in range(_TRIES):
        try:
            transfer(number)
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
            print(failed, file=sys.stderr, flush=True)
        else:
            return "done"
    return "failed"


def main(contender: str, *urls: str) -> None:
    transfer = CLIENTS[contender]([*urls])
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        print(insist(transfer, int(line)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
