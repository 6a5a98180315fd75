"""Where greenlet is missing, or no loop of asyncio's runs, an error says so; coroutine functions are as before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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


def test_no_loop_of_asyncio(tmp_path: Path) -> None:
    coroutine = txpool.aconnect(f"sqlite:///{tmp_path}/x.db")
    with pytest.raises(txpool.ProgrammingError, match="trio"):
        coroutine.send(None)
