"""A client of a contender: transfers numbers until it is killed, by itself or by others. What is done it prints.

It runs as `python -m tests.rivals.client CONTENDER POINT FIRST URL URL`. At the point "prepared" of its first transfer,
all branches are prepared and nothing is decided, and it kills itself; "" is nowhere.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import txpool
from tests.rivals.contest import PASSWORD
from txpool import failpoints

Transfer = Callable[[int], Awaitable[None]]


class InOne(DeclarativeBase):
    pass


class One(InOne):
    __tablename__ = "t"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]


class InTwo(DeclarativeBase):
    pass


class Two(InTwo):
    __tablename__ = "t"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def of_txpool(point: str, urls: list[str]) -> Transfer:
    txpool.configure("txpool.properties")
    if point:
        failpoints.arm(f"coordinator.{point}", "kill")

    async def transfer(number: int) -> None:
        async with txpool.transaction():
            for name in ("one", "two"):
                async with await txpool.aconnect(f"{name}.properties") as connection:
                    await connection.execute("insert into t (number) values (%s)", (number,))

    return transfer


def of_rival(point: str, urls: list[str]) -> Transfer:
    from sqlalchemy import event
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy_xa_recovery import async_two_phase_session

    password = {"password": os.environ[PASSWORD]}
    binds: dict[type[Any], Any] = {
        table: create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"), connect_args=password)
        for table, url in zip((One, Two), urls, strict=True)
    }
    if point:  # behind all of its prepares, before its first commit
        event.listen(binds[One].sync_engine, "commit_twophase", _die)

    async def transfer(number: int) -> None:
        async with async_two_phase_session(binds) as session:
            session.add_all((One(number=number), Two(number=number)))
            await session.commit()

    return transfer


CONTENDERS: dict[str, Callable[[str, list[str]], Transfer]] = {
    "txpool": of_txpool,
    "sqlalchemy-xa-recovery": of_rival,
}


async def main(contender: str, point: str, first: str, *urls: str) -> None:
    transfer = CONTENDERS[contender](point, [*urls])
    for number in itertools.count(int(first)):
        await transfer(number)
        print(number, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
