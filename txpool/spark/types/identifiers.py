"""Names as quoted identifiers in SQL."""

from __future__ import annotations

from collections.abc import Iterable


def quoted(name: str) -> str:
    """A name as a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def quoted_list(names: Iterable[str]) -> str:
    """Names as quoted identifiers with commas between them."""
    return ", ".join(map(quoted, names))
