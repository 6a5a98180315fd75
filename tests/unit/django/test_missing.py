"""Without Django, the backend says what to install."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.conftest import PythonWithout


def test_the_error_names_the_extra(python_without: PythonWithout) -> None:
    said = python_without("django", "import txpool.django.base")
    assert "txpool.errors.ConfigurationError" in said
    assert "pip install 'txpool[django]'" in said
