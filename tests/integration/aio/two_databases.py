"""What tests of tasks work with: two databases, their datasources, and strikes at each switch of a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import txpool
from txpool.aio.call import Call

if TYPE_CHECKING:
    from tests.conftest import Databases


@dataclass
class TwoDatabases:
    """Two databases, each with a table t, and their datasources."""

    databases: Databases
    one: txpool.DataSource
    two: txpool.DataSource

    async def insert(self, value: int) -> None:
        for source in (self.one, self.two):
            async with await txpool.aconnect(source) as connection:
                await connection.execute("insert into t values (%s)", (value,))

    async def transfer(self, value: int, begun: list[txpool.Transaction]) -> None:
        """One row in each, in one transaction."""
        async with txpool.transaction() as transaction:
            begun.append(transaction)
            await self.insert(value)

    def held(self, value: int) -> tuple[int, int]:
        """How often each database has the value, asked past txpool."""
        one, two = (self._count(name, value) for name in ("one", "two"))
        return one, two

    def _count(self, name: str, value: int) -> int:
        return int(self.databases.rows(name, f"select count(*) from t where a = {value}")[0][0])

    @property
    def prepared(self) -> list[Any]:
        return self.databases.rows("one", "select gid from pg_prepared_xacts")


@contextmanager
def struck_at(number: int, strike: Callable[[], object]) -> Iterator[list[int]]:
    """Within the block, the loop calls this once the calls of tasks have switched to it for the so manieth time.

    Gives a list with the number of each switch.
    """
    switches: list[int] = []
    pause = Call._pause

    def counting(self: Call) -> None:
        switches.append(len(switches) + 1)
        if len(switches) == number:
            asyncio.get_running_loop().call_soon(strike)
        pause(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Call, "_pause", counting)
        yield switches
