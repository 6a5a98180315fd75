"""Where greenlet is missing, or no loop of asyncio's runs, an error says so; coroutine functions are as before."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import pytest

import txpool

if TYPE_CHECKING:
    from tests.conftest import PythonWithout

_CODE = """
import asyncio, sys, warnings, txpool
warnings.simplefilter("ignore")  # of blocks without work
async def enter():
    async with txpool.transaction():
        pass
async def take():
    await txpool.aconnect("sqlite:///x.db")
@txpool.transactional
async def work():
    return txpool.current().status.value
for function in (enter, take):
    try:
        asyncio.run(function())
    except txpool.ConfigurationError as error:
        assert "pip install 'txpool[asyncio]'" in str(error), error
    else:
        raise AssertionError
print(asyncio.run(work()), file=sys.stderr)
"""


def test_greenlet_is_missing(python_without: PythonWithout) -> None:
    assert python_without("greenlet", _CODE).strip() == "active"


async def enter() -> None:
    async with txpool.transaction():
        raise AssertionError


@pytest.mark.parametrize("begin", [lambda: txpool.aconnect("sqlite:///x.db"), enter], ids=["connection", "block"])
def test_no_loop_of_asyncio(begin: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    with pytest.raises(txpool.ProgrammingError, match="trio"):
        begin().send(None)
