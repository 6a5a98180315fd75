"""Local transactions of MariaDB and MySQL: how they begin, commit and roll back.

With autocommit off, a statement begins a transaction by itself, also after the user's own COMMIT, after DDL, which
commits, and after a deadlock, which rolls back. What is committed at the end would then be a part. So txpool sets a
savepoint at the beginning: if it is gone, the transaction that was begun is gone.
"""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

from txpool.errors import TransactionRolledBack, described
from txpool.resources.base import BranchOutcome, ReadOnlyCheck, Refused
from txpool.resources.deadlines import Deadlines
from txpool.resources.mysql.branches import xa
from txpool.resources.mysql.session.protocol import WARNINGS, CommandResult, code_of, ends_session, tells_that_rows_stay
from txpool.sql.characteristics import Characteristics

if TYPE_CHECKING:
    from txpool.resources.driver.driver import Driver
    from txpool.resources.mysql.session.state import MySQLRawConnection

_SAVEPOINT: Final = "txpool_begin"
SET_SAVEPOINT: Final = f"savepoint {_SAVEPOINT}"
_BEGIN: Final = ("start transaction", SET_SAVEPOINT)
RELEASE: Final = f"release savepoint {_SAVEPOINT}"
_NO_SAVEPOINT: Final = 1305
# The server refuses before its commit point, and nothing is committed: deadlock, lock timeout, read-only server or
# transaction, a branch in the way.
_DEFINITE: Final = frozenset({xa.DEADLOCK, xa.LOCK_TIMEOUT, 1290, 1792, 1836, xa.RMFAIL})


class MySQLDialect:
    """Local transactions over a raw connection with a `session`."""

    def in_transaction(self, raw: MySQLRawConnection) -> bool:
        return bool(raw.lost or raw.started or raw.begun or raw.in_transaction)

    def watch_commands(self, raw: MySQLRawConnection) -> None:
        """Nothing: the server's status tells what is known."""

    def note_write(self, raw: MySQLRawConnection) -> None:
        """Nothing, for the same reason."""

    def read_only_check(
        self, datasource: str, driver: Driver, raw: MySQLRawConnection, deadlines: Deadlines, *, committing: bool
    ) -> ReadOnlyCheck | None:
        """Of a transaction that was begun READ ONLY, in which the server refuses writes. Of another, whether it has
        written is not told at any bearable price: it counts as a writer. So does one that may be the second, after a
        COMMIT of the program's own.
        """
        if not raw.reads_only or raw.unrollable or raw.lost or raw.may_have_committed:
            return None
        return MySQLReadOnlyCheck(datasource, driver, raw, deadlines)

    def commit(self, raw: MySQLRawConnection) -> None:
        session = raw.session
        if not session.is_alive():
            raise Refused("COMMIT was not sent: the connection was lost before it, and the server rolls back")
        try:
            require_begun(raw)
        except Exception as error:
            if isinstance(error, Refused):
                raise
            raise Refused(f"COMMIT was not sent: {described(error)}") from error
        try:
            session.run("commit")
        except Exception as error:
            if not ends_session(error) and code_of(error) in _DEFINITE:
                raise Refused(f"the database refused to commit: {described(error)}") from error
            raise
        raw.left()

    def rollback(self, driver: Driver, raw: MySQLRawConnection, until: float | None) -> BranchOutcome:
        ended = raw.ended_unseen
        if not raw.session.is_alive():
            if raw.unread:  # a statement was interrupted here: the server would go on with it, and hold its locks
                driver.cancel(raw, None if until is None else max(until - monotonic(), 0.1))
            driver.close(raw)
            return _after_rollback(raw, ended or _may_have_committed(raw))
        try:
            if raw.started and raw.xid is not None:
                for verb in ("end", "rollback"):
                    raw.session.send(xa.named(verb, raw.xid))
                    raw.session.receive(until)
            raw.session.send(*([RELEASE] if raw.begun and not ended else []), "rollback", WARNINGS)
            *released, rolled_back, warnings = raw.session.receive(until)
            raw.unrollable = raw.unrollable or tells_that_rows_stay(warnings)
            if released:
                ended = released[0].code == _NO_SAVEPOINT and not _rolled_back_by_itself(raw, until)
            if rolled_back.error is not None:
                raise rolled_back.error
            raw.left()
        except Exception:
            driver.close(raw)
            ended = ended or _may_have_committed(raw)
        return _after_rollback(raw, ended)


def _after_rollback(raw: MySQLRawConnection, ended: bool) -> BranchOutcome:
    """What a rollback has left behind; `ended` says that the transaction had ended before, unseen."""
    if raw.unrollable:
        return BranchOutcome.COMMITTED
    return BranchOutcome.LOST if ended else BranchOutcome.ROLLED_BACK


def _may_have_committed(raw: MySQLRawConnection) -> bool:
    """Whether a part of the local transaction may be committed, if the savepoint was not asked for, nor can be."""
    return bool(raw.begun and raw.may_have_committed)


def _rolled_back_by_itself(raw: MySQLRawConnection, until: float | None) -> bool:
    """Whether the server, and not the program, may have ended the transaction: then it has rolled back."""
    if raw.rolled_back:
        return True
    if not raw.timed_out:
        return False
    ((whole,),) = raw.session.run("select @@innodb_rollback_on_timeout", until)
    return str(whole) in ("1", "ON")


def begin(raw: MySQLRawConnection) -> None:
    """Begin the local transaction, with the savepoint, in one message. The server's error."""
    raw.begins_anew()
    session = raw.session
    session.send(*beginning_as(raw.characteristics), *_BEGIN)
    answers = session.receive()
    raw.begun = True
    for answer in answers:
        if answer.error is not None:
            raise answer.error


def beginning_as(characteristics: Characteristics) -> tuple[str, ...]:
    """The command that lets the next transaction begin so, if one is needed."""
    parts = []
    if characteristics.isolation is not None:
        parts.append(f"isolation level {characteristics.isolation.replace('-', ' ')}")
    if characteristics.read_only is not None:
        parts.append("read only" if characteristics.read_only else "read write")
    return (f"set transaction {', '.join(parts)}",) if parts else ()


def require_begun(raw: MySQLRawConnection) -> None:
    """`Refused` if the transaction that txpool has begun is not the one that is open now."""
    if raw.begun:
        raw.session.send(RELEASE)
        (answer,) = raw.session.receive()
        require_released(raw, answer)
        raw.begun = False  # it is known now, and a rollback need not ask again
    elif raw.rolled_back:
        raise _rolled_back(raw)


def require_released(raw: MySQLRawConnection, answer: CommandResult) -> None:
    """`Refused` if the answer to RELEASE says that the transaction which was begun is gone."""
    if raw.rolled_back:
        raise _rolled_back(raw)
    if answer.code == xa.DEADLOCK:  # by a node of a Galera cluster, for a commit on another node
        raw.rolled_back = str(answer.error)
        assert answer.error is not None  # noqa: S101 - it has a code
        raise Refused(f"the server has rolled the transaction back: {described(answer.error)}") from answer.error
    if answer.code == _NO_SAVEPOINT:
        raw.ended_unseen = not _rolled_back_by_itself(raw, None)
        raise Refused(
            "the transaction has ended before it: by a COMMIT, a ROLLBACK or DDL of the program's own, maybe in a "
            "stored procedure, and what was done before that may be committed"
        )
    if answer.error is not None:
        raise Refused(f"COMMIT was not sent: {described(answer.error)}") from answer.error
    raw.may_have_committed = False


def _rolled_back(raw: MySQLRawConnection) -> Refused:
    return Refused(f"the server has rolled the transaction back, and its error was caught ({raw.rolled_back})")


class MySQLReadOnlyCheck:
    """A transaction that was begun READ ONLY: the server itself has refused whatever would write."""

    def __init__(self, datasource: str, driver: Driver, raw: MySQLRawConnection, deadlines: Deadlines) -> None:
        self.datasource = datasource
        self._driver = driver
        self._raw = raw
        self._deadlines = deadlines

    def start_asking(self) -> None:
        """Nothing: there is nobody to ask."""

    def await_answer(self) -> bool:
        return True

    def require_alive(self) -> None:
        if not self._raw.session.is_alive():
            raise TransactionRolledBack(
                f"datasource {self.datasource} voted to roll back: the connection was lost before the end",
                datasource=self.datasource,
            )

    def start_commit(self) -> None:
        raw = self._raw
        if raw.started and raw.xid is not None:
            raw.session.send(xa.named("end", raw.xid), xa.one_phase(raw.xid))
        else:
            raw.session.send("commit")

    def await_commit(self) -> None:
        for answer in self._raw.session.receive(self._deadlines.after_decision()):
            if answer.error is not None:
                raise answer.error
        self._raw.left()

    def drop(self) -> None:
        with suppress(Exception):
            self._driver.close(self._raw)
