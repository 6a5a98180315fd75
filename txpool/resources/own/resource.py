"""Resources of a user's own: what one has to do to take part in transactions.

A resource is anything that can keep a change prepared under a name, so that a crash does not lose it, and can commit it
or roll it back later, from any process. It need not be a database.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from txpool.errors import ProgrammingError

#: The names that resources may have: any other could make a branch's name that recovery would not read.
NAME = re.compile(r"[A-Za-z0-9_.-]{1,32}")


class Work(ABC):
    """One transaction's work in a resource, which `Resource.begin` returns. Used by one thread at a time.

    Methods of your own do the work. Each of them first calls `require_active`: what is done after the transaction's end
    would be lost.
    """

    #: Returns its transaction, None once that was dropped; set when the resource is enlisted.
    owner: Callable[[], Any] | None = None

    @property
    def idle(self) -> bool:
        """True while nothing was done: it is left out of the protocol then."""
        return False

    def require_active(self) -> None:
        """Return if work may be done. Errors: TransactionTimeout, or ProgrammingError with the reason."""
        if self.owner is None:
            return
        transaction = self.owner()
        if transaction is None:
            raise ProgrammingError("the transaction was dropped without its end, and rolls back. Nothing was done")
        transaction.require_active()

    @abstractmethod
    def prepare(self, xid: str) -> None:
        """Keep the work under this name, durably; from now on only `Resource.commit` and `rollback` end it.

        An exception is the vote to roll back. Raise `Refused` if nothing is prepared and nothing will be, as when the
        name is taken. After any other exception it may be prepared, and is rolled back by its name.
        """

    @abstractmethod
    def rollback(self) -> None:
        """Undo the work, which is not prepared. Called also if `prepare` has raised."""


class Resource(ABC):
    """A resource of your own. Thread-safe. A file leads to it by `driver = package.module:Class`.

    It is made by `Class(name, url, **options)`; with `url_is_path` the absolute path stands for the url. The options
    are `user`, `password` and what the file gives as `driver.*`. Names are texts of at most 129 characters out of
    A-Z a-z 0-9 _ . : -, and are told apart by case.
    """

    #: The beginnings of its urls in files.
    schemes: ClassVar[tuple[str, ...]] = ("file:",)
    #: A whole url, for errors.
    url_example: ClassVar[str] = "file:/srv/folder"
    #: True if the url names a file or folder: relative to the configuration file that has it.
    url_is_path: ClassVar[bool] = True
    #: The path of the file that describes it; empty if it was made in code. Recovery finds it by its file.
    file: str = ""

    def __init__(self, name: str, *_: Any, **__: Any) -> None:
        """`name` is in decisions, and is 1 to 32 of the characters A-Z a-z 0-9 _ . -.

        It is the same in every process, and no other resource or datasource has it.
        """
        self.name = name

    @abstractmethod
    def identity(self) -> str:
        """What tells this place from every other, for as long as it exists. Never empty; the same in every process.

        Recovery does not take an xid's absence for its end if the url leads to another place now.
        """

    def generation(self) -> str:
        """What changes if the place was restored from a copy, and may have lost what was prepared; empty if unknown.

        Without it, a branch that is gone after a commit whose answer was lost is reported as a heuristic hazard.
        """
        return ""

    @abstractmethod
    def begin(self) -> Work:
        """The work of a new transaction."""

    @abstractmethod
    def prepared(self) -> Iterable[str]:
        """The names of all that is prepared, of every process. Other names than txpool's may be among them.

        Whoever can put a name there can have recovery end it: only those may who are trusted with the resource.
        """

    @abstractmethod
    def commit(self, xid: str) -> bool:
        """Commit what is prepared under this name, durably; False if nothing is. An exception leaves it unknown.

        Called again after an exception or a crash, and by several processes at once: the first one decides.
        """

    @abstractmethod
    def rollback(self, xid: str) -> bool:
        """Undo what is prepared under this name, durably; False if nothing is. An exception leaves it unknown."""

    def workload(self) -> Any:
        """What the conformance kit writes and reads: see `txpool.conformance.workload.Workload`."""
        raise NotImplementedError
