"""psycopg's tpc_*() on a plain connection, as psycopg has them, but for two things.

psycopg's tpc_prepare() takes any answer without an error for a yes. After a failed statement, or if the user's own
SQL has ended the transaction, PostgreSQL answers PREPARE TRANSACTION by the command tag ROLLBACK, and nothing is
prepared. Here that is an error. And psycopg takes a transaction for prepared even if PREPARE has failed. Here
nothing is open then, and tpc_rollback() has nothing to do.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.errors import InFailedSqlTransaction, NoActiveSqlTransaction, ObjectNotInPrerequisiteState

from txpool.dbapi.connection import PEP249Connection
from txpool.errors import translated
from txpool.pool import Pooled
from txpool.resources.postgresql.session.libpq import IDLE
from txpool.resources.postgresql.session.psycopg_private import TWO_PHASE, two_phase_of

if TYPE_CHECKING:
    from txpool.dbapi.statements import PooledDatasource
    from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection

logger = logging.getLogger("txpool")


class TwoPhaseConnection(PEP249Connection):
    """The part of psycopg's connection that begins, prepares and ends two-phase transactions."""

    __slots__ = ()

    _RESETS_TWO_PHASE = True

    def tpc_begin(self, xid: Any) -> None:
        """As psycopg's. NotSupportedError inside a transaction of txpool's; ProgrammingError for a name of txpool's."""
        raw = self.two_phase_raw("tpc_begin", [xid])
        self._own_state()
        with translated():
            raw.tpc_begin(xid)
            raw.not_prepared = False

    def tpc_prepare(self) -> None:
        """As psycopg's; if it raises, the transaction has rolled back, but for an answer that was lost."""
        raw = self.two_phase_raw("tpc_prepare")
        begun = two_phase_of(raw)
        with translated():
            if begun is None or begun[1]:
                raw.tpc_prepare()  # which raises
                return
            try:
                self._prepare(raw, begun[0])
            except ObjectNotInPrerequisiteState as error:
                _nothing_prepared(raw)
                raise psycopg.NotSupportedError(str(error)) from None
            except Exception as error:
                if raw.closed:
                    error.add_note(
                        f"whether {begun[0]} is prepared is not known: see tpc_recover() of another connection"
                    )
                else:
                    _nothing_prepared(raw)
                raise

    def _prepare(self, raw: PsycopgRawConnection, xid: Any) -> None:
        with raw.pipeline() if raw.pgconn.pipeline_status else nullcontext() as pipeline:
            if pipeline is not None:
                pipeline.sync()  # else it is not known whether a transaction is open
            if raw.pgconn.transaction_status == IDLE:  # psycopg would begin another, and prepare that
                raise NoActiveSqlTransaction(f"{xid} is not prepared: SQL has ended its transaction before")
            setattr(raw, TWO_PHASE, (xid, True))  # from now on, it may be
            raw.unanswered = True
            cursor = psycopg.Cursor(raw)
            cursor.execute(sql.SQL("prepare transaction {}").format(str(xid)), prepare=False)
            if pipeline is not None:
                pipeline.sync()
        raw.unanswered = False
        if cursor.statusmessage != "PREPARE TRANSACTION":
            raise InFailedSqlTransaction(
                f"{xid} is not prepared, and its transaction has rolled back: a statement in it had failed "
                f"(PREPARE TRANSACTION was answered by {cursor.statusmessage})"
            )

    def tpc_commit(self, xid: Any = None) -> None:
        """As psycopg's; ProgrammingError for the xid of a branch of txpool's."""
        raw = self.two_phase_raw("tpc_commit", [xid])
        with translated():
            raw.tpc_commit(xid)

    def tpc_rollback(self, xid: Any = None) -> None:
        """As psycopg's; ProgrammingError for the xid of a branch of txpool's."""
        raw = self.two_phase_raw("tpc_rollback", [xid])
        with translated():
            if xid is None and raw.not_prepared and two_phase_of(raw) is None:
                raw.not_prepared = False
                return
            raw.tpc_rollback(xid)

    def tpc_recover(self) -> list[Any]:
        """As psycopg's: the names of everything that is prepared on the server, branches of txpool's too."""
        raw = self.two_phase_raw("tpc_recover")
        with translated():
            found: list[Any] = raw.tpc_recover()
        return found

    def _before_give_back(self, pooled: Pooled[Any], datasource: PooledDatasource) -> None:
        super()._before_give_back(pooled, datasource)
        begun = None if self.handle_state is None else two_phase_of(pooled.raw)
        if begun is not None and begun[1]:
            logger.warning(
                "datasource %s: a connection was closed, and its transaction %s %s prepared: it holds its locks until "
                "tpc_commit(%r) or tpc_rollback(%r) on any connection of its role",
                datasource.name,
                begun[0],
                "may be" if pooled.raw.unanswered else "stays",
                str(begun[0]),
                str(begun[0]),
            )

    def _open_two_phase(self) -> str:
        begun = two_phase_of(self.pooled.raw) if self.pooled is not None else None
        if begun is None:
            return ""
        return f", {'prepared' if begun[1] else 'in the two-phase transaction'} {str(begun[0])!r}"


def _nothing_prepared(raw: PsycopgRawConnection) -> None:
    setattr(raw, TWO_PHASE, None)
    raw.unanswered, raw.not_prepared = False, True
    if raw.pgconn.transaction_status != IDLE:
        raw.rollback()
