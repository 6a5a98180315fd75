"""A local transaction in PostgreSQL over psycopg: its commit and rollback."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

import psycopg

from txpool.errors import described
from txpool.resources.base import BranchOutcome, ReadOnlyCheck, Refused
from txpool.resources.deadlines import Deadlines
from txpool.resources.postgresql.read_only import PostgreSQLReadOnlyCheck
from txpool.resources.postgresql.session.libpq import (
    ACTIVE,
    IDLE,
    INERROR,
    INTRANS,
    LibpqSession,
    ends_session,
    failure,
    why_not_open,
)

if TYPE_CHECKING:
    from txpool.resources.driver.driver import Driver
    from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection

# idle_in_transaction_session_timeout: the server checks it before it executes a command. So a command with this answer
# was never executed. No other error that ends a session says that.
_IDLE_TOO_LONG = "25P03"
_ROLLED_BACK = BranchOutcome.ROLLED_BACK


class PostgreSQLDialect:
    """Local transactions of PostgreSQL over psycopg."""

    def in_transaction(self, raw: psycopg.Connection[Any]) -> bool:
        return raw.pgconn.transaction_status != IDLE

    def watch_commands(self, raw: PsycopgRawConnection) -> None:
        raw.wrote = raw.notified = False

    def note_write(self, raw: PsycopgRawConnection) -> None:
        raw.wrote = True

    def read_only_check(
        self, datasource: str, driver: Driver, raw: PsycopgRawConnection, deadlines: Deadlines, *, committing: bool
    ) -> ReadOnlyCheck | None:
        if raw.wrote or (raw.notified and not committing):
            return None
        return PostgreSQLReadOnlyCheck(datasource, driver, raw, deadlines)

    @staticmethod
    def commit(raw: PsycopgRawConnection, message: str = "commit") -> None:
        """As `Dialect.commit`, by a message whose last statement is COMMIT."""
        session: LibpqSession = raw.session
        if not session.is_alive() or raw.pgconn.transaction_status != INTRANS:
            raise Refused(f"COMMIT was not sent: {why_not_open(raw)}")
        session.send(message)
        results = session.receive()
        if results and results[-1].command_status == b"COMMIT":
            return
        error = failure(results)
        if error is not None and ends_session(error) and error.sqlstate != _IDLE_TOO_LONG:
            raise error
        if error is not None:
            raise Refused(f"the database refused to commit: {described(error)}") from error
        raise Refused("the database answered COMMIT by ROLLBACK: a statement before it had failed")

    def rollback(self, driver: Driver, raw: PsycopgRawConnection, until: float | None) -> BranchOutcome:
        session = raw.session
        if session.status == ACTIVE:
            # The statement was interrupted here: without a cancel the server would go on with it, and hold its locks.
            driver.cancel(raw, None if until is None else max(until - monotonic(), 0.1))
            raw.close()
        elif session.status in (INTRANS, INERROR):
            try:
                session.run("rollback", until)
            except psycopg.Error:
                raw.close()
        return _ROLLED_BACK
