"""One global transaction: its status, the datasources enlisted in it, and its callbacks.

A `Transaction` collects what takes part; how it ends is in `Completion`. The thread or task that began it ends it.
Other threads may work in it meanwhile, and are serialised on each connection.
"""

from __future__ import annotations

import logging
import os
import sys
from _thread import LockType
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Token
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

from txpool.locks import RLock
from txpool.log.base import DecisionLog
from txpool.resources.base import PREPARED, Branch
from txpool.resources.deadlines import NO_DEADLINES, Deadlines
from txpool.sql.characteristics import UNSPECIFIED
from txpool.tm import own
from txpool.tm.ambient import left_behind
from txpool.tm.background import statistics
from txpool.tm.commit.annotations import checked_note
from txpool.tm.commit.coordinator import Coordinator
from txpool.tm.completion import dropped
from txpool.tm.completion.completion import Completion
from txpool.tm.completion.status import ACTIVE, OPEN, Status
from txpool.tm.completion.synchronizations import Synchronizations
from txpool.tm.events import Events
from txpool.tm.rules.enlistment import require_adoptable, require_atomic, require_begins_as, require_same
from txpool.xid import Xid, make_xid

if TYPE_CHECKING:
    from txpool.resources.own.resource import Resource
    from txpool.tm.enlistment import Part, TakesPart
    from txpool.tm.rules.extent import Extent
    from txpool.tracing import Trace

logger = logging.getLogger("txpool")

E = TypeVar("E", bound="Part")


class Transaction(Completion):
    """A global transaction. Its attributes may be read from any thread; the thread or task that began it ends it."""

    rolling_back: LockType | None = None  #: Held until a thread has rolled it back, which was abandoned.
    token: Token[Transaction | None] | None = None  #: By which its block has made it ambient.
    suspended: Transaction | None = None  #: The one that its block has suspended.
    _events: Events | None = None
    new_lock: Callable[[], RLock] = RLock  #: Makes the locks that are held over waits: a task's can be waited for.

    def __init__(
        self,
        gtrid: str,
        log: DecisionLog | None,
        resolve_later: Callable[[Transaction, Coordinator], object],
        deadlines: Deadlines = NO_DEADLINES,
    ) -> None:
        self.gtrid = gtrid  #: Its name, with which the names of its branches begin.
        self.origin: dropped.Origin | None = None  #: Where it was begun.
        self.block: object = None  #: A reference to the block that will end it, until that has been left.
        self.extent: Extent | None = None  #: Where that block is.
        self.unanswered: Sequence[str] = ()  #: Once it has ended: the datasources that recovery will finish.
        #: A `with transaction()` block, a decorated function or a Spark task will end it.
        self.scoped = False
        #: Its spans, if it is traced.
        self.trace: Trace | None = None
        #: How its branches begin, over what their datasources have.
        self.characteristics = UNSPECIFIED
        #: The name that its sessions have on the server meanwhile; empty if they keep their own.
        self.label = ""
        #: What other modules keep for as long as the transaction lives, by keys of their own.
        self.values: dict[Any, Any] = {}
        #: Until when it waits for its databases.
        self.deadlines = deadlines
        self._log = log
        self._resolve_later = resolve_later
        self._pid = os.getpid()
        # Reentrant, since a finaliser may run anywhere, and that of a handle may mark the transaction rollback-only.
        self._lock = RLock()
        self._enlisted: dict[str, Part] = {}
        self._adopted: list[Branch] = []
        self._unprepared = False  #: Something may take part that does not prepare.
        self._late_branches = False
        self._deferring = 0  #: How many threads are in `defer_commit`.
        self._rollback_cause: BaseException | None = None
        #: The decision is being made: a rollback cause that comes now changes nothing.
        self._deciding = False
        self._note = ""
        self._synchronizations: Synchronizations | None = None
        self.status = ACTIVE  #: How far it is: a `Status`.
        statistics.begun()

    def __del__(self, program_ends: Callable[[], bool] = sys.is_finalizing) -> None:
        try:
            left = self.status in OPEN
        except (AttributeError, TypeError):  # an interrupt came before it was made; the program ends, and has no names
            return
        if not (left or self._enlisted) or program_ends():
            return
        if left:
            dropped.roll_back_abandoned(self)
        else:  # an interrupt has kept its connections from being given back
            dropped.parts.pop(id(self), None)
            for enlistment in self._enlisted.values():
                enlistment.release_left(dropped=True)

    def __repr__(self) -> str:
        enlisted = f": {', '.join(self._enlisted)}" if self._enlisted else ""
        return f"<Transaction {self.gtrid} {self.status.value}{enlisted}>"

    @property
    def log(self) -> DecisionLog | None:
        """The decision log that it began with; None if none is configured."""
        return self._log

    @property
    def note(self) -> str:
        """A line of text for people, kept with its decision. Setting anything else is a ProgrammingError."""
        return self._note

    @note.setter
    def note(self, note: str) -> None:
        self._note = checked_note(note)

    def left_behind(self, _: object = None) -> None:
        """The last reference to its block is gone, and nobody has left that. May be called in a finaliser."""
        left_behind(self)

    def enlist(self, resource: Resource) -> Any:
        """Let a resource of your own take part; returns its work here, what `Resource.begin` has returned.

        It is the same each time. Databases need no such call: their connections join by themselves. Errors: as
        `require_active`, the resource's own, and ProgrammingError if the transaction would not stay atomic with it.

        In a task, within `async with txpool.transaction()`, it is awaited: `await tx.enlist(resource)`.
        """
        if self.awaits:
            awaited = resolve_name("txpool.aio.block:enlist")(self, resource)
            if awaited is not None:
                return awaited
        return own.enlist(self, resource)

    def enlist_datasource(self, datasource: TakesPart[E], timeout: float | None = None) -> E:
        """The datasource's enlistment in this transaction, which has one for each datasource.

        `timeout` is how many seconds to wait for a connection. Errors: as `require_active`, and ProgrammingError if
        the transaction would not stay atomic with this datasource.
        """
        enlistment: Any = self._enlisted.get(datasource.name)
        if enlistment is None:
            with self._lock:
                if self.status is not ACTIVE:
                    self.require_active()
                enlistment = self._enlisted.get(datasource.name)
                if enlistment is None:
                    # Datasources that prepare, and a log: these can always join.
                    if datasource.role is not PREPARED or self._log is None or self._unprepared:
                        self._require_atomic(datasource)
                        self._unprepared = True
                    if self.characteristics is not UNSPECIFIED:
                        require_begins_as(self.gtrid, datasource, self.characteristics)
                    if not self._enlisted:
                        dropped.parts[id(self)] = self._enlisted, self._adopted
                    enlistment = self._enlisted[datasource.name] = datasource.enlistment_class(datasource, self)
        elif self.status is not ACTIVE:
            self.require_active()
        if enlistment.datasource is not datasource:
            require_same(self.gtrid, enlistment.datasource, datasource)
        if enlistment.pooled is None:
            if self.trace is not None:
                self.trace.enlisting(datasource)
            enlistment.open(self, timeout)
        part: E = enlistment
        return part

    def enlistment_in(self, datasource: str) -> Part | None:
        """The enlistment of the datasource of that name; None if that takes no part, or is not opened yet."""
        enlistment = self._enlisted.get(datasource)
        return None if enlistment is None or enlistment.pooled is None else enlistment

    def _require_atomic(self, datasource: TakesPart[Any]) -> None:
        """Raise if the transaction would not stay atomic with this datasource; nothing has changed then."""
        if self._enlisted or self._adopted:
            require_atomic(
                self.gtrid, self.datasources, datasource, adopted=bool(self._adopted), logged=self._log is not None
            )

    def early_name(self, datasource: str) -> Xid:
        """The name of a branch that must have one before its first statement.

        Its number is its place of enlistment. Who will decide is not known yet: the name says the log.
        """
        return make_xid(self.gtrid, list(self._enlisted).index(datasource), datasource)

    @property
    def datasources(self) -> list[TakesPart[Any]]:
        """The datasources that take part in it."""
        return [enlistment.datasource for enlistment in self._enlisted.values()]

    @property
    def holds(self) -> str:
        """The connections and prepared branches that it holds, for people; empty if it holds none."""
        return dropped.describe_parts(list(self._enlisted), len(self._adopted))

    def works_in(self, name: str) -> bool:
        """Whether the datasource of that name takes part in it."""
        return name in self._enlisted

    def adopt(self, branches: Sequence[Branch], *, late_branches: bool) -> None:
        """Take over branches that subordinates have prepared: they commit or roll back with this transaction.

        It takes them also if it is marked rollback-only, and rolls them back then; those that it has already, it leaves
        as they are. `late_branches` says that others of this gtrid may still appear prepared.
        """
        with self._lock:
            if self.ended:
                self.require_active()
            require_adoptable(self.gtrid, self.datasources, logged=self._log is not None)
            self.may_be_empty = True
            known = {each.record.xid for each in self._adopted}
            self._adopted.extend(each for each in branches if each.record.xid not in known)
            dropped.parts[id(self)] = self._enlisted, self._adopted
            self._late_branches = self._late_branches or late_branches

    @contextmanager
    def defer_commit(self) -> Iterator[None]:
        """For another thread than the one that ends it: a commit that begins within the block rolls back.

        So what the thread does in several steps is never committed by half.
        """
        with self._lock:
            self.require_active()
            self._deferring += 1
        try:
            yield
        finally:
            with self._lock:
                self._deferring -= 1

    def before_completion(self, callback: Callable[[], object], *, interposed: bool = False) -> None:
        """Call before commit (not before rollback); interposed ones come last. An exception forces rollback."""
        self.may_be_empty = True
        self._own_synchronizations().add_before(callback, interposed=interposed)

    def after_completion(self, callback: Callable[[Status], object]) -> None:
        """Call with the final status, the last registered first; its errors are logged."""
        self.may_be_empty = True
        self._own_synchronizations().add_after(callback)

    def fire(self, event: object) -> None:
        """Tell those who observe events of this class, each in its phase: see `txpool.observe()`.

        From any thread; while another commits it, an event may come too late for `before`. Errors: ProgrammingError if
        it has ended, can only roll back, or is the parent process's; TransactionTimeout.
        """
        self._require_open()
        self.require_active()
        synchronizations = self._own_synchronizations()
        with self._lock:
            if self._events is None:
                self._events = Events(synchronizations)
        self._events.fire(event)

    def _own_synchronizations(self) -> Synchronizations:
        if self._synchronizations is None:
            with self._lock:  # another thread may ask for them, too
                if self._synchronizations is None:
                    self._synchronizations = Synchronizations()
        return self._synchronizations

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call, from another thread, when the timeout expires (a Spark job group is cancelled so)."""
        self._cancels += (callback,)
