"""managed.commit=join: what commit() and rollback() of a handle do inside a transaction.

Each handle's work since its last commit() or rollback() has a savepoint, opened by its first statement. Savepoints
are a stack: only the top one can be released, and going back to one undoes all that was done above it, whoever did
it. So a commit() below the top is remembered and released later, and a rollback() that would undo another handle's
work is no longer possible: the transaction as a whole rolls back instead.
"""

from __future__ import annotations

from itertools import count
from typing import Any


class NotInnermost(Exception):
    """A rollback() is not possible: other work has been done above the savepoint."""


class Savepoint:
    """One handle's work since its last commit() or rollback(); or, without an owner, a block of the driver's own."""

    __slots__ = ("gone", "kept", "name", "not_innermost", "owner")

    def __init__(self, owner: object, name: str) -> None:
        self.owner = owner
        self.name = name
        #: commit() was called: to be released as soon as it is on top.
        self.kept = False
        #: Somebody else has worked above it.
        self.not_innermost = False
        #: A block below it was released, and took it along.
        self.gone = False


class Savepoints:
    """The savepoints on one raw connection. Called under the enlistment's lock."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._stack: list[Savepoint] = []
        self._numbers = count(1)

    def work(self, owner: object) -> None:
        """Before a statement: open the owner's savepoint, if this is its first since the last commit or rollback."""
        stack = self._stack
        if stack and stack[-1].owner is owner and not stack[-1].kept:
            return
        below = [savepoint for savepoint in stack if savepoint.owner is not owner and not savepoint.not_innermost]
        # First of all: a finaliser may call rollback() of another owner while the connection executes.
        for savepoint in below:
            savepoint.not_innermost = True
        if self._find(owner) is None:
            name = f"txpool_{next(self._numbers)}"
            try:
                self._raw.execute(f"savepoint {name}")
            except BaseException:
                for savepoint in below:
                    savepoint.not_innermost = False
                raise
            stack.append(Savepoint(owner, name))

    def commit(self, owner: object) -> None:
        """Keep what the owner did; where the database refuses, since a statement has failed, undo it and raise.

        What is raised is the error that is on its way, where there is one: libraries that commit in a `finally`, as
        pandas does, would hide what had failed behind the consequence.
        """
        savepoint = self._find(owner)
        if savepoint is None:
            return
        savepoint.kept = True
        failure: BaseException | None = None
        try:
            self._release()
        except Exception as error:
            # PostgreSQL's COMMIT would answer ROLLBACK, without an error: a yes that is none.
            self._raw.execute(f"rollback to {self._stack[-1].name}")
            self._release()
            failure = error.__context__ or error
        if failure is not None:
            failure.add_note("commit() has kept nothing: what this connection did since its last commit() is undone")
            raise failure

    def rollback(self, owner: object) -> None:
        """Undo what the owner did. Errors: Overlaid."""
        savepoint = self._find(owner)
        if savepoint is None:
            return
        if savepoint.not_innermost:
            savepoint.kept = True
            raise NotInnermost
        self._raw.execute(f"rollback to {savepoint.name}")
        savepoint.kept = True
        self._release()

    def close(self, owner: object) -> None:
        """The owner's handle is closed: what it did stays in the transaction. No I/O, and no lock is needed."""
        savepoint = self._find(owner)
        if savepoint is not None:
            savepoint.kept = True

    def enter_block(self) -> Savepoint:
        """The driver opens a savepoint of its own."""
        block = Savepoint(None, "")
        self._stack.append(block)
        return block

    def leave_block(self, block: Savepoint, *, undone: bool) -> None:
        """The driver has released its savepoint, or gone back to it: those above are gone with it."""
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
                self._raw.execute(f"release {self._stack[-1].name}")
            self._stack.pop()
