"""Connections that recovery opens: whatever they wait for, they wait no longer than the step of the pass lasts."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from psycopg.pq.abc import PGconn, PGresult

from txpool.resources.deadlines import within_step
from txpool.resources.postgresql.session.libpq import LibpqSession, bounded
from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection


class SteppedSession(LibpqSession):
    """A session whose answers must come within the step of its thread."""

    __slots__ = ()

    def send(self, message: str) -> None:
        within_step()  # nothing is sent once the step is over
        super().send(message)

    def receive(self, until: float | None = None) -> list[PGresult]:
        return super().receive(within_step(until))


class SteppedConnection(PsycopgRawConnection):
    """A connection whose statements must be answered within the step of its thread."""

    def __init__(self, pgconn: PGconn, *args: Any, **options: Any) -> None:
        super().__init__(pgconn, *args, **options)
        self.session = SteppedSession(pgconn)

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        return super().wait(bounded(gen, within_step()), *args, **options)
