"""Readers in PostgreSQL: a check whether a local transaction has only read, and the end of one that has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from txpool.errors import TransactionRolledBack, translate
from txpool.resources.deadlines import Deadlines
from txpool.resources.driver.driver import Driver
from txpool.resources.postgresql.qualified import qualified
from txpool.resources.postgresql.session.libpq import INTRANS, LibpqSession, failure, value, why_not_open

if TYPE_CHECKING:
    from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection

# A transaction without an id has written nothing in this database, but a function may have written through a foreign
# server. The COMMIT of a serializable transaction may be refused though it has only read; not that of a READ ONLY one,
# which is never the pivot that PostgreSQL refuses. A COMMIT executes the rest of the query of a cursor WITH HOLD, which
# may write.
_HAS_ONLY_READ = qualified(
    "select pg_current_xact_id_if_assigned() is null "
    "and not exists (select from pg_foreign_server) "
    "and not exists (select from pg_cursors where is_holdable) "
    "and (current_setting('transaction_isolation') <> 'serializable' "
    "or current_setting('transaction_read_only') = 'on')"
)


class PostgreSQLReadOnlyCheck:
    """The check of one connection's local transaction. Used by one thread at a time."""

    def __init__(self, datasource: str, driver: Driver, raw: PsycopgRawConnection, deadlines: Deadlines) -> None:
        self.datasource = datasource
        self._driver = driver
        self._raw = raw
        self._deadlines = deadlines
        self._session: LibpqSession = raw.session

    def start_asking(self) -> None:
        session = self._session
        if not session.is_alive() or session.status != INTRANS:
            raise self._rollback_vote(why_not_open(self._raw))
        try:
            session.send(_HAS_ONLY_READ)
        except psycopg.Error as error:
            raise self._with_note(error) from None

    def await_answer(self) -> bool:
        try:
            results = self._session.receive(self._deadlines.before_decision())
        except psycopg.Error as error:
            raise self._with_note(error) from None
        failed = failure(results)
        if failed is not None:
            raise self._with_note(failed)
        if not results:
            raise self._rollback_vote("an interrupt discarded the answer to whether it has only read")
        return value(results[-1]) == "t"

    def require_alive(self) -> None:
        if not self._session.is_alive():
            raise self._rollback_vote(why_not_open(self._raw))

    def start_commit(self) -> None:
        self._session.send("commit")

    def await_commit(self) -> None:
        results = self._session.receive(self._deadlines.after_decision())
        failed = failure(results)
        if failed is not None:
            raise failed
        if not results or results[-1].command_status != b"COMMIT":
            raise psycopg.OperationalError("the server's answer to COMMIT was not COMMIT")

    def drop(self) -> None:
        self._driver.close(self._raw)

    def _with_note(self, error: psycopg.Error) -> psycopg.Error:
        translate(error)
        error.add_note(f"datasource {self.datasource} voted to roll back, when it was asked whether it has only read")
        return error

    def _rollback_vote(self, why: str) -> TransactionRolledBack:
        return TransactionRolledBack(
            f"datasource {self.datasource} voted to roll back: {why}", datasource=self.datasource
        )
