"""What users may name does not change unseen."""

from __future__ import annotations

import pytest

from tests.support.public_names import FILE, text


def test_the_file_of_public_names_is_what_the_code_says() -> None:
    pytest.importorskip("pyspark")
    assert text() == FILE.read_text(encoding="utf-8"), (
        "a public name has changed: `python -m tests.support.public_names` writes the file anew. Is the change wanted? "
        "Then it has a line in CHANGELOG.md, and what is gone warns for one minor version first (txpool.deprecation)"
    )
