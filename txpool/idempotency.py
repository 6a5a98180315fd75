"""Work that has a name of the user's own: a rerun meets the record of it, and is told so; it is never done twice.

The record is a row beside the data, written in the very transaction that does the work: the one is there exactly where
the other is. Recovery never deletes it. Of two runs at a time one waits for the other's row, whatever their isolation,
and what is in doubt keeps its row locked: so nobody takes a name before it is known how the run before has ended.
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
from typing import Any

from txpool.datasource import DataSource, find, known
from txpool.errors import AlreadyDone, NotSupportedError, OperationalError, ProgrammingError
from txpool.resources.base import Role
from txpool.resources.records import EarlierRun, RecordsTable
from txpool.tm.manager import get_manager
from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")

#: Where a record is kept.
RecordIn = str | Path | DataSource
#: What is not known of a piece of work.
UNKNOWN_FUNCTION = "-"
#: What the records of whole transactions are for, and of what kind their work is.
WHOLE, BLOCK, FUNCTION = "transaction", "block", "function"

#: Milliseconds to wait for another run that has the name, before recovery is asked, and after that.
_PATIENCE = (1_000, 10_000)
_MAX_LENGTH = 200
_NOT_SERIALIZABLE = "40001"


@dataclass(frozen=True, slots=True)
class IdempotentWork:
    """A name, what it is for, and what can be told of the work that it is given to."""

    source: DataSource
    transaction_id: str
    target: str
    gtrid: str
    mode: str
    #: What tells this work from other work of its kind: words with spaces between, UNTOLD where nothing is known.
    plan: str
    #: Batches count upwards: the record of one takes the place of that of the batch before.
    batch: int | None = None

    def take(self, transaction: Transaction) -> EarlierRun | None:
        """Take the name within the transaction, which is ambient; the run that had it before, where it has committed.

        That may be this very transaction, too. One that is in doubt is settled by recovery first, where that can be.
        Errors: OperationalError where another run has the name and does not end within some ten seconds;
        ProgrammingError where it is known to have been of other work; the driver's own where the record cannot be
        written. The transaction is as it was then, but for an interrupt, which dooms it: the name may be taken.
        """
        try:
            with self._explained(), self._records.opened(self.source) as cursor:
                claimed, earlier = self._claim(cursor)
            return self._resolved(earlier, claimed=claimed)
        except BaseException as error:
            if not isinstance(error, Exception):
                transaction.set_rollback_only(error)
            raise

    def finish(self, connection: Any, partitions: int, rows: int | None = None) -> None:
        """Record how much it was, within the connection's transaction."""
        self._records.finish(connection.cursor(), self.transaction_id, self.target, partitions, rows)

    def already_done(self, earlier: EarlierRun) -> AlreadyDone:
        """The error that says so."""
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

    # -- for those who know more of their work ------------------------------------------------------------------

    def _claim(self, cursor: Any) -> tuple[bool | None, EarlierRun | None]:
        """Whether the name was free, None where somebody has it and does not end; and the record that was met."""
        try:
            claimed = self._records.insert(cursor, self._record, _PATIENCE[0])
            if claimed is None:
                self._ask_recovery()
                claimed = self._records.insert(cursor, self._record, _PATIENCE[1])
        except Exception as error:
            # Another run has ended while this one waited, after the snapshot that this transaction goes by was taken.
            if getattr(error, "sqlstate", None) != _NOT_SERIALIZABLE:
                raise
            met = self._records.read_outside(self.source, self.transaction_id, self.target)
            if met is None:
                raise
            return False, met
        if claimed is not False:  # whoever has locked the records would not let them be read either
            return claimed, None
        return False, self._records.read(cursor, self.transaction_id, self.target)

    def _resolved(self, earlier: EarlierRun | None, *, claimed: bool | None) -> EarlierRun | None:
        if earlier is not None:
            self._require_same(earlier)
        elif not claimed:
            raise self._in_progress()
        return earlier

    def _require_same(self, earlier: EarlierRun) -> None:
        """ProgrammingError where the earlier run is known to have done other work. A block tells nothing of its own."""
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
            f"{self.gtrid}: another run of transaction_id={self.transaction_id!r} is at work now, or is in doubt with "
            "a process that lives, or that this node does not recover, or somebody has locked "
            f"{self._records.table} of {self.source.name}: `txpool-recovery list` tells what is in doubt. Nothing was "
            "done, do it again later"
        )

    # ------------------------------------------------------------------------------------------------------------

    def _ask_recovery(self) -> None:
        """Have it end what is in doubt, where it can."""
        try:
            if get_manager().log is None or not self._records.may_be_prepared(self.source):
                return
            logger.warning("%s: an earlier run of %r has not ended: recovery is asked", self.gtrid, self.transaction_id)
            Context().run(_recover, self.source)
        except Exception as error:
            logger.warning("%s: recovery could not be asked, and is left to who runs it: %s", self.gtrid, error)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            error.add_note(
                f"{self.gtrid}: transaction_id={self.transaction_id!r} could not be recorded in "
                f"{self._records.table} of {self.source.name}, and nothing was done under that name"
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
    """The name of a whole transaction, or of a part that has joined one."""

    transaction_id: str
    source: DataSource
    #: What a decorated function is called; None for a block.
    function: str | None

    @classmethod
    def of(cls, transaction_id: Any, record_in: Any, function: Any = None) -> IdempotentTransaction:
        """ProgrammingError for what is no id, or where one of both is missing; ConfigurationError as by connect()."""
        if function is None:  # of a function both have been looked for when it was decorated
            require_both(transaction_id, record_in)
        name = None if function is None else name_of(function)
        return cls(checked_id(transaction_id), find(record_in), name)

    def claim(self, transaction: Transaction) -> None:
        """Take the name within the transaction, which is ambient. AlreadyDone, and as `Named.take`."""
        mode, plan = (BLOCK, UNKNOWN_FUNCTION) if self.function is None else (FUNCTION, self.function)
        named = IdempotentWork(self.source, self.transaction_id, WHOLE, transaction.gtrid, mode, plan)
        earlier = named.take(transaction)
        if earlier is not None:
            raise named.already_done(earlier)


def require_both(transaction_id: Any, record_in: Any) -> None:
    """ProgrammingError where one is given without the other."""
    if transaction_id is None:
        raise ProgrammingError("record_in= is where a transaction_id= is recorded, and there is none. Nothing was done")
    if record_in is None:
        raise ProgrammingError(
            f"transaction_id={transaction_id!r} needs record_in=, the datasource that keeps it, so that a rerun finds "
            "it done: one that the transaction writes to costs least. Nothing was done"
        )


def checked_id(transaction_id: object) -> str:
    """The id, if it is one; ProgrammingError."""
    if not isinstance(transaction_id, str):
        raise ProgrammingError(f"a transaction_id is text, and not {type(transaction_id).__name__}. Nothing was done")
    if not 0 < len(transaction_id) <= _MAX_LENGTH or not transaction_id.isprintable() or transaction_id.isspace():
        raise ProgrammingError(
            f"a transaction_id is one line of 1 to {_MAX_LENGTH} printable characters, and this one has "
            f"{len(transaction_id)}, or some that are not printable. Nothing was done"
        )
    return transaction_id


def name_of(function: Any) -> str:
    """What a function is called, run after run; UNTOLD where nothing tells it from others."""
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


def _recover(source: DataSource) -> None:
    """One scan over all that this process knows: a run that is in doubt ends by it, if its process is dead."""
    from recovery import RecoveryManager

    datasources = {each.name: each for each in (*known().values(), source) if each.role in (Role.PREPARED, Role.MARKED)}
    RecoveryManager(log=get_manager().log, datasources=datasources.values(), backoff=0).scan()
