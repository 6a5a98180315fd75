"""One global transaction: its status, the datasources enlisted in it, its callbacks, and how it ends.

A `Transaction` gathers; the `Coordinator` decides. The thread or task that began it ends it; threads that were handed
it may work in it meanwhile, and are serialised on each connection.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol, cast

from txpool.coordinator import Coordinator, Outcome, Result, Unit
from txpool.errors import ProgrammingError, TransactionRolledBack, TransactionTimeout
from txpool.log.base import DecisionLog
from txpool.outcome import raise_outcome, rolled_back
from txpool.resources.base import Answer, Branch, MarkedBranch

logger = logging.getLogger("txpool")


_WRITE_A_LOG = (
    "Write these two lines into conf/txpool.properties (or pass them to txpool.configure):\n"
    "    node.name = my-service-1\n    log.url = sqlite:///txlog\n"
    "and create the log once, by `txpool-recovery init` or by log.create = true"
)


class Status(Enum):
    """JTA's statuses of a transaction."""

    ACTIVE = "active"
    MARKED_ROLLBACK = "marked rollback-only"
    COMMITTING = "committing"  #: from the call of commit() on: preparing, deciding, committing
    COMMITTED = "committed"
    ROLLING_BACK = "rolling back"
    ROLLED_BACK = "rolled back"
    PREPARED = "prepared"  #: a subordinate's end: somebody else decides
    IN_DOUBT = "in doubt"
    HEURISTIC = "heuristic"  #: some of it committed and some not, or nobody can say


class Enlistable(Protocol):
    """What a transaction needs of a datasource."""

    @property
    def name(self) -> str: ...

    @property
    def mode(self) -> str: ...

    def open_enlistment(self, transaction: Transaction) -> Enlistment:
        """Take a physical connection for the whole transaction, and make its branch."""


class Enlistment(Protocol):
    """One datasource's part in one transaction: its physical connection until the end, and its branch."""

    @property
    def branch(self) -> Branch | MarkedBranch:
        """Its branch; waits for the statement that another thread executes on it."""

    @property
    def mode(self) -> str:
        """The datasource's: xa, cmr, last-resource or local."""

    def cancel(self) -> None:
        """Stop what is executing on it; from any thread, never raises."""

    def release(self, *, reusable: bool) -> None:
        """The transaction has ended: back to the pool, or destroyed where its state is not certain."""


class Transaction:
    """A global transaction. Attributes may be read from any thread; ended by the one who began it."""

    def __init__(
        self, gtrid: str, log: DecisionLog | None, settle_later: Callable[[Transaction, Coordinator], object]
    ) -> None:
        self.gtrid = gtrid
        self.status = Status.ACTIVE
        #: Values and notes of other rooms that live as long as the transaction, by their own key.
        self.values: dict[Any, Any] = {}
        #: True while a `with transaction()` block, or a decorator, will end it.
        self.scoped = False
        self._log = log
        self._settle_later = settle_later
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._slots: dict[str, _Slot] = {}
        self._adopted: list[Branch] = []
        self._loose_ends = False
        self._doom: BaseException | None = None
        self._before: list[Callable[[], object]] = []
        self._interposed: list[Callable[[], object]] = []
        self._after: list[Callable[[Status], object]] = []
        self._cancels: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        return f"<Transaction {self.gtrid} {self.status.value}: {', '.join(self._slots) or 'nothing enlisted'}>"

    @property
    def active(self) -> bool:
        """True while work may be done in it."""
        return self.status is Status.ACTIVE

    @property
    def ended(self) -> bool:
        """True once commit, rollback or (a subordinate's) prepare has begun: no work can be done in it any more."""
        return self.status not in (Status.ACTIVE, Status.MARKED_ROLLBACK)

    @property
    def doom(self) -> BaseException | None:
        """Why it can only roll back; None while it may commit."""
        return self._doom

    # -- while it is active -------------------------------------------------------------------------------------

    def enlist(self, datasource: Enlistable) -> Any:
        """The datasource's one enlistment in this transaction. Errors: as `require_active`, and a refused part."""
        slot = self._slots.get(datasource.name)
        if slot is None:
            with self._lock:
                self.require_active()
                slot = self._slots.get(datasource.name)
                if slot is None:
                    self._admit(datasource)
                    slot = self._slots[datasource.name] = _Slot(datasource)
        elif self.status is not Status.ACTIVE:
            self.require_active()
        return slot.enlistment or slot.open(self)

    def _admit(self, datasource: Enlistable) -> None:
        """Refuse a part that could not be kept atomic; the transaction is as it was then."""
        others = [slot.datasource for slot in self._slots.values()]
        everyone = [*others, datasource]
        alone = next((d for d in everyone if d.mode == "local"), None)
        unprepared = [d for d in everyone if d.mode in ("cmr", "last-resource")]
        why = None
        if alone is not None and (others or self._adopted):
            why = f"{alone.name} (mode=local) can neither prepare nor be marked, so it must be alone. Give it mode=cmr"
        elif len(unprepared) > 1:
            first, second = unprepared[-2:]
            why = (
                f"{first.name} (mode={first.mode}) and {second.name} (mode={second.mode}) cannot prepare, and only one "
                "such datasource can be in a transaction"
            )
        elif (others or self._adopted) and self._log is None:
            why = f"it is the second one, and two need a decision log. {_WRITE_A_LOG}"
        if why is not None:
            raise ProgrammingError(
                f"datasource {datasource.name} cannot join {self.gtrid}: {why}. The transaction is as it was."
            )

    def require_active(self) -> None:
        """Raise what somebody who wants to work in this transaction must hear."""
        if self.status is Status.ACTIVE:
            return
        if self.status is Status.MARKED_ROLLBACK:
            if isinstance(self._doom, TransactionTimeout):
                raise self._doom
            raise ProgrammingError(
                f"{self.gtrid} is marked rollback-only: it can do nothing but roll back"
            ) from self._doom
        raise ProgrammingError(f"{self.gtrid} has ended ({self.status.value}): it can take no more work")

    def adopt(self, branches: Sequence[Branch], *, loose_ends: bool) -> None:
        """Take over branches that subordinates have prepared: from now on this transaction decides them.

        One that is marked rollback-only takes them, too, and rolls them back.
        """
        with self._lock:
            if self.ended:
                self.require_active()
            if self._log is None:
                raise ProgrammingError(
                    f"{self.gtrid} cannot take over prepared branches: that needs a decision log. {_WRITE_A_LOG}"
                )
            for slot in self._slots.values():
                if slot.datasource.mode == "local":
                    raise ProgrammingError(
                        f"{self.gtrid} cannot take over prepared branches: {slot.datasource.name} (mode=local) is in "
                        "it, which can neither prepare nor be marked, so it must be alone. Give it mode=cmr"
                    )
            self._adopted.extend(branches)
            self._loose_ends = self._loose_ends or loose_ends

    def set_rollback_only(self, reason: BaseException | None = None) -> None:
        """From now on it can only roll back. After the decision this changes nothing."""
        with self._lock:
            # While it is committing, the coordinator asks once more just before the decision.
            if self.status in (Status.ACTIVE, Status.COMMITTING) and self._doom is None:
                self._doom = reason or rolled_back(self.gtrid, "it was marked rollback-only")
            if self.status is Status.ACTIVE:
                self.status = Status.MARKED_ROLLBACK

    def expire(self, seconds: float) -> None:
        """Its time is up: roll back only, and stop what is executing. Never acts after the decision."""
        error = TransactionTimeout(
            f"{self.gtrid} took longer than its timeout of {seconds:g} s; it rolls back, nothing of it stays",
            gtrid=self.gtrid,
        )
        self.set_rollback_only(error)
        if self.status is not Status.MARKED_ROLLBACK:
            return
        for slot in list(self._slots.values()):
            if slot.enlistment is not None:
                slot.enlistment.cancel()
        for cancel in self._cancels:
            _quietly(cancel)

    def before_completion(self, callback: Callable[[], object], *, interposed: bool = False) -> None:
        """Call before commit (not before rollback); interposed ones come last. An exception forces rollback."""
        (self._interposed if interposed else self._before).append(callback)

    def after_completion(self, callback: Callable[[Status], object]) -> None:
        """Call with the final status, the last registered first; its errors are logged."""
        self._after.append(callback)

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call, from another thread, when the timeout strikes (a Spark job group is cancelled so)."""
        self._cancels.append(callback)

    # -- its end ------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit everywhere. Errors: TransactionRolledBack, TransactionTimeout, TransactionInDoubt, HeuristicError."""
        self._require_open()
        try:
            self._call_before()
        except BaseException as error:
            self._end(committing=False)
            if not isinstance(error, Exception):
                raise
            raise rolled_back(self.gtrid, f"a before_completion callback failed: {error}") from error
        if self._doom is not None:
            raise_outcome(self._end(committing=False), wanted=Outcome.ROLLED_BACK)
            if isinstance(self._doom, TransactionRolledBack):
                raise self._doom
            raise rolled_back(self.gtrid, f"an inner block failed: {self._doom}") from self._doom
        raise_outcome(self._end(committing=True), wanted=Outcome.COMMITTED)

    def rollback(self) -> None:
        """Roll back everywhere. Raises only where a branch had committed by itself (HeuristicError)."""
        self._require_open()
        raise_outcome(self._end(committing=False), wanted=Outcome.ROLLED_BACK)

    def settled(self, result: Result) -> None:
        """Hear how it ended after all, having been in doubt."""
        self.status = _STATUS.get(result.outcome, Status.HEURISTIC)

    def _require_open(self) -> None:
        if os.getpid() != self._pid:
            raise ProgrammingError(f"{self.gtrid} is the parent process's: only that can end it")
        if self.ended:
            self.require_active()

    def _call_before(self) -> None:
        for callbacks in (self._before, self._interposed):
            position = 0
            while position < len(callbacks) and self._doom is None:  # a callback may register another
                callbacks[position]()
                position += 1

    def _end(self, *, committing: bool) -> Result:
        with self._lock:
            self._require_open()
            self.status = Status.COMMITTING if committing else Status.ROLLING_BACK
        coordinator = Coordinator(self._unit(), self._log)
        result = coordinator.commit() if committing else coordinator.rollback()
        self.status = _STATUS.get(result.outcome, Status.HEURISTIC)
        if not result.settled and result.knowable:
            self._settle_later(self, coordinator)
        self._release(result)
        self._call_after()
        return result

    def _enlistments(self) -> list[Enlistment]:
        return [slot.enlistment for slot in self._slots.values() if slot.enlistment is not None]

    def _unit(self) -> Unit:
        opened = self._enlistments()
        parts = {mode: [e.branch for e in opened if e.mode == mode] for mode in ("cmr", "last-resource")}
        return Unit(
            gtrid=self.gtrid,
            branches=[cast(Branch, e.branch) for e in opened if e.mode not in parts],
            adopted=self._adopted,
            marked=next((cast(MarkedBranch, branch) for branch in parts["cmr"]), None),
            last=next((cast(Branch, branch) for branch in parts["last-resource"]), None),
            loose_ends=self._loose_ends,
            doomed=lambda: self._doom,
        )

    def _release(self, result: Result) -> None:
        for name, slot in self._slots.items():
            if slot.enlistment is not None:
                certain = result.outcome is not Outcome.IN_DOUBT and result.answers.get(name) is not Answer.UNKNOWN
                _quietly(lambda e=slot.enlistment, c=certain: e.release(reusable=c))  # type: ignore[misc]

    def _call_after(self) -> None:
        for callback in reversed(self._after):
            _quietly(lambda c=callback: c(self.status))  # type: ignore[misc]


class _Slot:
    """Where a datasource's enlistment will stand: opened by the first thread that needs it, once."""

    __slots__ = ("_opening", "datasource", "enlistment")

    def __init__(self, datasource: Enlistable) -> None:
        self.datasource = datasource
        self.enlistment: Enlistment | None = None
        self._opening = threading.Lock()

    def open(self, transaction: Transaction) -> Enlistment:
        with self._opening:
            if self.enlistment is None:
                self.enlistment = self.datasource.open_enlistment(transaction)
            return self.enlistment


_STATUS = {
    Outcome.COMMITTED: Status.COMMITTED,
    Outcome.ROLLED_BACK: Status.ROLLED_BACK,
    Outcome.IN_DOUBT: Status.IN_DOUBT,
    Outcome.HEURISTIC_ROLLBACK: Status.ROLLED_BACK,
    Outcome.HEURISTIC_COMMIT: Status.COMMITTED,
}


def _quietly(callback: Callable[[], object]) -> None:
    """Its errors are logged: the outcome stands, whatever a callback thinks of it."""
    try:
        callback()
    except Exception:
        logger.exception("a callback after the end of a transaction failed; the outcome stands")
