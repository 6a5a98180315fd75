"""in_transaction() where it cannot be had."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import txpool
from txpool.web import fastapi

if TYPE_CHECKING:
    from tests.conftest import PythonWithout


def test_without_the_extra_an_error_names_it(python_without: PythonWithout) -> None:
    assert "pip install 'txpool[fastapi]'" in python_without("fastapi", "import txpool.web.fastapi")


def test_the_middleware_needs_none(python_without: PythonWithout) -> None:
    assert python_without("fastapi", "import txpool.web.wsgi") == ""


def test_an_old_fastapi_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose dependencies end after the answer."""
    monkeypatch.setattr(fastapi, "Depends", lambda dependency, *, use_cache=True: dependency)
    with pytest.raises(txpool.ConfigurationError, match=r"needs FastAPI 0\.121 or later"):
        fastapi.in_transaction()
