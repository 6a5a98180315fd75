"""What commit() and rollback() do inside a transaction, of a handle that joins: one of a datasource with
managed.commit=join, or one of an Engine of SQLAlchemy.

Each handle's work since its last commit() or rollback() has a savepoint, opened by its first statement. Savepoints
are a stack: only the innermost can be released, and a rollback to one undoes all later work, of every handle. So a
commit() of an outer savepoint is remembered, and the savepoint released later. A rollback() that would undo another
handle's work is refused, and the transaction as a whole rolls back instead. Other handles have no savepoints.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING, Any

from txpool.dbapi.refusals import commit_in_block, end_refused, given_up, not_innermost
from txpool.errors import described, translated

#: The driver's own blocks in which this code is: its task or thread has entered them, or was started in them.
_blocks: ContextVar[tuple[Savepoint, ...]] = ContextVar("txpool_savepoints", default=())

if TYPE_CHECKING:
    from txpool.dbapi.enlistment import Enlistment
    from txpool.dbapi.handle import Handle


def commit(enlistment: Enlistment, handle: Handle) -> None:
    """Keep what the handle has done since its last commit() or rollback(). Errors: ProgrammingError, the driver's."""
    savepoints = _savepoints(enlistment, handle, "commit")
    with enlistment.entered(handle):
        savepoints.commit(handle)


def rollback(enlistment: Enlistment, handle: Handle) -> None:
    """Undo what the handle has done since its last commit() or rollback(). Errors: ProgrammingError, the driver's."""
    savepoints = _savepoints(enlistment, handle, "rollback")
    with enlistment.lock:
        transaction = enlistment.owner()
        if transaction is None or not transaction.active:  # it rolls back as a whole, or has ended
            return
        try:
            with translated():
                savepoints.rollback(handle)
        except NotInnermost:
            error = not_innermost(enlistment.datasource.name, enlistment.gtrid)
            transaction.set_rollback_only(error)
            raise error from None


def give_up(handle: Handle, why: str) -> None:
    """SQLAlchemy gives it up: what it has not committed is not kept, nor is all else. No I/O."""
    enlistment = handle.enlistment
    if enlistment is None or enlistment.savepoints is None or not enlistment.savepoints.has_work(handle):
        return
    transaction = enlistment.owner()
    if transaction is not None:
        transaction.set_rollback_only(given_up(enlistment.datasource.name, enlistment.gtrid, why))


def why_invalid(error: BaseException | None) -> str:
    """Why SQLAlchemy invalidates a handle: the error that it has raised; None if that is a program's wish."""
    return "by invalidate()" if error is None else f"as it raised {described(error)}. Let such an error leave the block"


def _savepoints(enlistment: Enlistment, handle: Handle, command: str) -> SavepointStack:
    if not handle.joins_commits:
        raise end_refused(command, enlistment.datasource.name, enlistment.gtrid)
    savepoints = enlistment.own_savepoints()
    if savepoints.in_block:
        raise commit_in_block(command, enlistment.datasource.name, enlistment.gtrid)
    return savepoints


class NotInnermost(Exception):
    """A rollback() is not possible: another handle has worked since the savepoint was opened."""


class Savepoint:
    """One handle's savepoint; without an owner, that of a block of the driver's own (psycopg's transaction())."""

    __slots__ = ("disturbed", "gone", "kept", "name", "not_innermost", "owner")

    def __init__(self, owner: object, name: str) -> None:
        self.owner = owner
        self.name = name
        #: commit() was called: it is released as soon as it is the innermost.
        self.kept = False
        #: Another handle has worked since it was opened.
        self.not_innermost = False
        #: It was released together with a block around it.
        self.gone = False
        #: It is a block's, and another task or thread has worked since, which is not in the block.
        self.disturbed = False


class SavepointStack:
    """The savepoints on one raw connection, by its driver's `execute`. Called under the enlistment's lock."""

    def __init__(self, execute: Callable[[str], Any]) -> None:
        self._execute = execute
        self._stack: list[Savepoint] = []
        self._numbers = count(1)

    def open(self, owner: object, *, joins: bool = True) -> None:
        """Before a statement: open the owner's savepoint, if this is its first since the last commit or rollback.

        One that does not join has none: its work is only seen to come between those of others.
        """
        stack = self._stack
        if not stack and not joins:
            return
        for savepoint in stack:
            if savepoint.owner is None and savepoint not in _blocks.get():
                savepoint.disturbed = True
        if stack and stack[-1].owner is owner and not stack[-1].kept:
            return
        below = [savepoint for savepoint in stack if savepoint.owner is not owner and not savepoint.not_innermost]
        # Before anything executes, since a finaliser may call another owner's rollback() meanwhile.
        for savepoint in below:
            savepoint.not_innermost = True
        if joins and self._find(owner) is None:
            name = f"txpool_{next(self._numbers)}"
            try:
                self._execute(f"savepoint {name}")
            except BaseException:
                for savepoint in below:
                    savepoint.not_innermost = False
                raise
            stack.append(Savepoint(owner, name))

    def commit(self, owner: object) -> None:
        """Keep the owner's work. If the database refuses, since a statement has failed, undo it and raise.

        An exception that is being handled is raised in place of the database's: libraries that commit in a `finally`,
        as pandas does, would else hide the first failure behind this one.
        """
        savepoint = self._find(owner)
        if savepoint is None:
            return
        savepoint.kept = True
        failure: BaseException | None = None
        try:
            self._release()
        except Exception as error:
            # Without this, PostgreSQL would answer ROLLBACK to the later COMMIT, without an error.
            self._execute(f"rollback to savepoint {self._stack[-1].name}")
            self._release()
            failure = error.__context__ or error
        if failure is not None:
            failure.add_note("commit() has kept nothing: what this connection did since its last commit() is undone")
            raise failure

    def rollback(self, owner: object) -> None:
        """Undo the owner's work. Errors: NotInnermost."""
        savepoint = self._find(owner)
        if savepoint is None:
            return
        if savepoint.not_innermost:
            savepoint.kept = True
            raise NotInnermost
        self._execute(f"rollback to savepoint {savepoint.name}")
        savepoint.kept = True
        self._release()

    def has_work(self, owner: object) -> bool:
        """Whether the owner has done something since its last commit or rollback. No I/O; needs no lock."""
        return self._find(owner) is not None

    def close(self, owner: object) -> None:
        """The owner's handle is closed: its work stays in the transaction. No I/O; needs no lock."""
        savepoint = self._find(owner)
        if savepoint is not None:
            savepoint.kept = True

    def enter_block(self) -> Savepoint:
        """The driver opens a savepoint of its own."""
        block = Savepoint(None, "")
        self._stack.append(block)
        _blocks.set((*_blocks.get(), block))
        return block

    def leave_block(self, block: Savepoint, *, undone: bool) -> None:
        """The driver has released its savepoint, or rolled back to it: the savepoints within it are gone, too."""
        _blocks.set(tuple(each for each in _blocks.get() if each is not block))
        position = self._stack.index(block)
        above = self._stack[position + 1 :]
        del self._stack[position:]
        if not undone:
            for savepoint in above:
                savepoint.gone = savepoint.not_innermost = True
            self._stack += [savepoint for savepoint in above if not savepoint.kept]

    @property
    def in_block(self) -> bool:
        return any(savepoint.owner is None for savepoint in self._stack)

    def _find(self, owner: object) -> Savepoint | None:
        for savepoint in reversed(self._stack.copy()):
            if savepoint.owner is owner and not savepoint.kept:
                return savepoint
        return None

    def _release(self) -> None:
        while self._stack and self._stack[-1].kept:
            if not self._stack[-1].gone:
                self._execute(f"release savepoint {self._stack[-1].name}")
            self._stack.pop()
