"""in_transaction() where it cannot be had, and where no thread can."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NoReturn

import pytest
from fastapi.requests import HTTPConnection

import txpool
from txpool.web import fastapi
from txpool.web.fastapi import in_transaction, require_version

if TYPE_CHECKING:
    from tests.conftest import PythonWithout


def test_without_the_extra_an_error_names_it(python_without: PythonWithout) -> None:
    assert "pip install 'txpool[fastapi]'" in python_without("fastapi", "import txpool.web.fastapi")


def test_the_middleware_needs_none(python_without: PythonWithout) -> None:
    assert python_without("fastapi", "import txpool.web.wsgi") == ""


@pytest.mark.parametrize("version", ["0.120.4", "0.121.0", "0.99.1"])
def test_one_that_would_commit_after_the_answer_is_refused(version: str) -> None:
    with pytest.raises(txpool.ConfigurationError, match=f"FastAPI {version} would commit after the answer"):
        require_version(version)


@pytest.mark.parametrize("version", ["0.121.1", "0.122.0", "0.165.0rc1", "1.0"])
def test_a_later_one_is_not(version: str) -> None:
    require_version(version)


def test_it_ends_where_no_thread_is_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing:
        @staticmethod
        def Thread(**_: object) -> NoReturn:
            raise RuntimeError("can't start new thread")

    async def request() -> txpool.Transaction:
        connection = HTTPConnection({"type": "http", "endpoint": lambda: None})
        async with asynccontextmanager(in_transaction().dependency)(connection) as begun:
            assert txpool.current() is begun
        assert txpool.current() is None
        return begun

    monkeypatch.setattr(fastapi, "threading", Nothing)
    assert asyncio.run(request()).status is txpool.Status.COMMITTED
