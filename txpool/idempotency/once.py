"""Idempotent work: work with a transaction_id of the user's is done once; a rerun raises AlreadyDone.

Its record is a row beside the data, written in the transaction that does the work: so either both are there or neither
is. Recovery never deletes it. Of two runs at the same time one waits for the other's row, at every isolation level. A
run in doubt keeps its row locked: so no other claims the id before it is known how that has ended.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txpool.datasource import DataSource, find, known
from txpool.errors import AlreadyDone, NotSupportedError, OperationalError, ProgrammingError
from txpool.idempotency.on_demand import recover
from txpool.resources.records import EarlierRun, RecordsTable
from txpool.tm.manager import get_manager
from txpool.tm.transaction import Transaction

if TYPE_CHECKING:
    from txpool.dbapi.connection import PEP249Connection
    from txpool.dbapi.cursor import PEP249Cursor

logger = logging.getLogger("txpool")

#: The datasource that keeps a record: its file, its name, or itself.
RecordIn = str | Path | DataSource
#: Stands in a plan for a function or digest that is not known.
UNKNOWN_FUNCTION = "-"
#: The target of the records of whole transactions, and their two modes.
WHOLE, BLOCK, FUNCTION = "transaction", "block", "function"

#: Milliseconds to wait for another run with the same id: before recovery is asked, and after that.
_LOCK_TIMEOUTS_MS = (1_000, 10_000)
_MAX_LENGTH = 200
_NOT_SERIALIZABLE = "40001"


@dataclass(frozen=True, slots=True)
class IdempotentWork:
    """A transaction_id, its target, and what is known of the work."""

    source: DataSource
    transaction_id: str
    target: str
    gtrid: str
    mode: str
    #: Distinguishes this work from other work of its mode: words with spaces between, UNKNOWN_FUNCTION for an unknown.
    plan: str
    #: The number of a stream's batch, whose record replaces that of the batch before.
    batch: int | None = None

    def claim_within(self, transaction: Transaction) -> EarlierRun | None:
        """Claim the id within the transaction, which is ambient. Returns the earlier run that has committed, or None.

        The earlier run may be this very transaction. One in doubt is first resolved by recovery, if that can.
        Errors: OperationalError if another run has claimed the id and does not end within some ten seconds;
        ProgrammingError if the earlier run is known to have done other work; the driver's own if the record
        cannot be written. The transaction is as it was then; but an interrupt marks it rollback-only, since the record
        may have been written.
        """
        try:
            with self._naming_record(), self._records.opened(self.source) as cursor:
                claimed, earlier = self._insert(cursor)
            return self._checked(earlier, claimed=claimed)
        except BaseException as error:
            if not isinstance(error, Exception):
                transaction.set_rollback_only(error)
            raise

    def finish(self, connection: PEP249Connection, partitions: int, rows: int | None = None) -> None:
        """Add to the record how much was done, within the connection's transaction."""
        self._records.finish(connection.cursor(), self.transaction_id, self.target, partitions, rows)

    def already_done(self, earlier: EarlierRun) -> AlreadyDone:
        """The error for a rerun."""
        done_at = earlier.made_at and earlier.made_at.astimezone(UTC)
        when = "" if done_at is None else f" (begun {done_at:%Y-%m-%d %H:%M:%S} UTC)"
        by = f"{earlier.gtrid} has committed it{when}"
        if earlier.gtrid == self.gtrid:
            by = f"this very transaction, {self.gtrid}, has done it, and its end decides"
        return AlreadyDone(
            f"transaction_id={self.transaction_id!r} is done already: {by}, and its record stands in "
            f"{self._records.table} of {self.source.name}. Nothing was done again",
            transaction_id=self.transaction_id,
            datasource=self.source.name,
            gtrid=earlier.gtrid,
            done_at=done_at,
        )

    # -- steps of claim -----------------------------------------------------------------------------------------

    def _insert(self, cursor: PEP249Cursor) -> tuple[bool | None, EarlierRun | None]:
        """Whether the record was inserted, None if another run holds the id and does not end; and its record."""
        try:
            claimed = self._records.insert(cursor, self._record, _LOCK_TIMEOUTS_MS[0])
            if claimed is None:
                self._ask_recovery()
                claimed = self._records.insert(cursor, self._record, _LOCK_TIMEOUTS_MS[1])
        except Exception as error:
            # Another run has ended while this one waited, after this transaction's snapshot was taken.
            if getattr(error, "sqlstate", None) != _NOT_SERIALIZABLE:
                raise
            earlier = self._records.read_outside(self.source, self.transaction_id, self.target)
            if earlier is None:
                raise
            return False, earlier
        if claimed is not False:  # if another run holds the id, its record cannot be read
            return claimed, None
        return False, self._records.read(cursor, self.transaction_id, self.target)

    def _checked(self, earlier: EarlierRun | None, *, claimed: bool | None) -> EarlierRun | None:
        if earlier is not None:
            self._require_same(earlier)
        elif not claimed:
            raise self._in_progress()
        return earlier

    def _require_same(self, earlier: EarlierRun) -> None:
        """ProgrammingError if the earlier run is known to have done other work; the work of a block is not known."""
        differ = self.mode != earlier.mode and BLOCK not in (self.mode, earlier.mode)
        pairs = zip(self.plan.split(), earlier.plan.split(), strict=False)
        if differ or any(now != then and UNKNOWN_FUNCTION not in (now, then) for now, then in pairs):
            raise ProgrammingError(
                f"transaction_id={self.transaction_id!r} stands for other work already, which {earlier.gtrid} has "
                f"done: that was {_describe(earlier.mode, earlier.plan)}, and this is "
                f"{_describe(self.mode, self.plan)} ({self._records.table} of {self.source.name}). Give this work an "
                "id of its own. Nothing was done"
            )

    def _in_progress(self) -> OperationalError:
        return OperationalError(
            f"{self.gtrid}: another run of transaction_id={self.transaction_id!r} is at work now, or is in doubt. Its "
            "process may be alive, or on a node that this one does not recover. Or somebody has locked "
            f"{self._records.table} of {self.source.name}. Nothing was done: see `txpool-recovery list`, and run it "
            "again later"
        )

    def _ask_recovery(self) -> None:
        """Let recovery resolve transactions in doubt, if it can."""
        try:
            if get_manager().log is None or not self._records.may_be_prepared(self.source):
                return
            logger.warning("%s: an earlier run of %r has not ended: recovery is asked", self.gtrid, self.transaction_id)
            Context().run(recover, [*known().values(), self.source])
        except Exception as error:
            logger.warning(
                "%s: recovery could not be run here, and is left to the node's recovery: %s", self.gtrid, error
            )

    @contextmanager
    def _naming_record(self) -> Iterator[None]:
        table = self._records.table
        try:
            yield
        except Exception as error:
            error.add_note(
                f"{self.gtrid}: transaction_id={self.transaction_id!r} could not be recorded in "
                f"{table} of {self.source.name}, and nothing was done for it"
            )
            raise

    @property
    def _records(self) -> RecordsTable:
        found = self.source.resource_manager.records
        if found is None:
            raise NotSupportedError(
                f"datasource {self.source.name} ({self.source.resource_manager.database}) keeps no records of work "
                "with a transaction_id: name another by record_in. Nothing was done"
            )
        return found

    @property
    def _record(self) -> list[Any]:
        return [self.transaction_id, self.target, self.gtrid, self.mode, self.plan, self.batch]


@dataclass(frozen=True, slots=True)
class IdempotentTransaction:
    """The transaction_id of a whole transaction, or of a nested block."""

    transaction_id: str
    source: DataSource
    #: The name of a decorated function; None for a block.
    function: str | None

    @classmethod
    def of(cls, transaction_id: Any, record_in: Any, function: Any = None) -> IdempotentTransaction:
        """Errors: ProgrammingError if the id is none, or one of both is missing; ConfigurationError as connect()."""
        if function is None:  # for a function, this was checked when it was decorated
            require_both(transaction_id, record_in)
        name = None if function is None else name_of(function)
        return cls(checked_id(transaction_id), find(record_in), name)

    def claim(self, transaction: Transaction) -> None:
        """Claim the id in the ambient transaction. Errors: AlreadyDone, and those of IdempotentWork.claim_within."""
        mode, plan = (BLOCK, UNKNOWN_FUNCTION) if self.function is None else (FUNCTION, self.function)
        work = IdempotentWork(self.source, self.transaction_id, WHOLE, transaction.gtrid, mode, plan)
        earlier = work.claim_within(transaction)
        if earlier is not None:
            raise work.already_done(earlier)


def require_both(transaction_id: Any, record_in: Any) -> None:
    """ProgrammingError if one is given without the other."""
    if transaction_id is None:
        raise ProgrammingError("record_in= is where a transaction_id= is recorded, and there is none. Nothing was done")
    if record_in is None:
        raise ProgrammingError(
            f"transaction_id={transaction_id!r} needs record_in=, the datasource that keeps it, so that a rerun finds "
            "it done: one that the transaction writes to costs least. Nothing was done"
        )


def checked_id(transaction_id: object) -> str:
    """The id itself; ProgrammingError if it is not one line of text."""
    if not isinstance(transaction_id, str):
        raise ProgrammingError(f"a transaction_id is text, and not {type(transaction_id).__name__}. Nothing was done")
    if not 0 < len(transaction_id) <= _MAX_LENGTH or not transaction_id.isprintable() or transaction_id.isspace():
        raise ProgrammingError(
            f"a transaction_id is one line of 1 to {_MAX_LENGTH} printable characters, and this one has "
            f"{len(transaction_id)}, or some that are not printable. Nothing was done"
        )
    return transaction_id


def name_of(function: Any) -> str:
    """The name of a function, the same in each run; UNKNOWN_FUNCTION for a lambda."""
    while isinstance(function, functools.partial):
        function = function.func
    name = str(getattr(function, "__qualname__", type(function).__qualname__))
    return UNKNOWN_FUNCTION if name.endswith("<lambda>") else "".join(name.split())


def _describe(mode: str, plan: str) -> str:
    name, *digest = plan.split() or [UNKNOWN_FUNCTION]
    if mode == FUNCTION:
        return f"{name}()"
    of = "" if name == UNKNOWN_FUNCTION else f" of {name}()"
    over = f" over what has the digest {digest[0][:8]}" if digest and digest[0] != UNKNOWN_FUNCTION else ""
    return f"a {mode}{of}{over}"
