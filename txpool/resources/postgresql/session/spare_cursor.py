"""A spare cursor of psycopg's, for the next command of a physical connection: to make one costs half a command.

`ExecutedCursor` takes it, and gives it back once it has what the command has answered. Nobody else has ever seen it, so
nothing that is seen tells it from a new one.
"""

from __future__ import annotations

from typing import Any

import psycopg

from txpool.resources.postgresql.session.connection import DeadlineConnection


class SparingConnection(DeadlineConnection):
    """A connection with a spare cursor, or none."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: The spare cursor. Whoever takes it, by pop(), has it alone, and gives it back to the list it was taken from.
        self.spare: list[psycopg.Cursor[Any]] = []
        #: The session's encoding when it was made, which it goes on with.
        self.spare_encoding: bytes | None = None

    def close(self) -> None:
        self.spare = []  # it refers to the connection
        super().close()
