"""A running COPY, as users of psycopg's connection hold it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg

from txpool.dbapi.cursor import NOT_HERE
from txpool.resources.postgresql.session.psycopg_private import part_that_has_arrived

if TYPE_CHECKING:
    from txpool.resources.postgresql.handle.cursor import PsycopgCursor


class Copy:
    """A running COPY: psycopg's methods, with `cursor` and `connection` as the user holds them."""

    __slots__ = ("_raw", "connection", "cursor", "read", "read_row", "rows", "set_types", "write", "write_row")

    def __init__(self, raw: psycopg.Copy, cursor: PsycopgCursor) -> None:
        self._raw = raw
        self.cursor = cursor
        self.connection = cursor.connection
        self.set_types = raw.set_types
        # Bound methods of psycopg's: they are called for each row, where one more call costs.
        self.read, self.read_row, self.rows = raw.read, raw.read_row, raw.rows
        self.write, self.write_row = raw.write, raw.write_row

    def __iter__(self) -> Iterator[Any]:
        return iter(self._raw)

    def read_here(self) -> Any:
        """For an event loop: as `read`, if the next part has arrived; else NOT_HERE."""
        part = part_that_has_arrived(self._raw)
        return NOT_HERE if part is None else part

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in Copy.__slots__:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(self._raw, name)

    def __repr__(self) -> str:
        return f"<txpool copy: {self._raw!r}>"

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return psycopg.Copy
