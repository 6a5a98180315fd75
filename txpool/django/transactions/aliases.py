"""The aliases that work in one transaction, and their on_commit() functions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from weakref import ref

from django.db.transaction import TransactionManagementError

from txpool.tm.ambient import make_ambient, restore_ambient
from txpool.tm.completion.status import Status

if TYPE_CHECKING:
    from txpool.django.wrapper import Transactional
    from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")
django_logger = logging.getLogger("django.db.backends.base")  # which has Django's own message of this

#: A function of on_commit(), and whether its error is logged instead of raised.
Hook = tuple[Callable[[], object], bool]


class Aliases:
    """Those of one transaction: it refers to them weakly, as they to it."""

    def __init__(self, transaction: Transaction) -> None:
        self._gtrid = transaction.gtrid
        self._connections: list[ref[Transactional]] = []
        #: The functions to run, once it has committed.
        self.hooks: list[Hook] = []
        #: A block of Django's ends it, and runs them.
        self.begun_by_django = False
        # What Django's blocks have done there is kept only if they were left.
        transaction.before_completion(self._require_left, interposed=True)
        transaction.after_completion(self._ended)

    @classmethod
    def of(cls, transaction: Transaction) -> Aliases:
        """The transaction's."""
        found: Aliases | None = transaction.values.get(cls)
        if found is None:
            found = transaction.values[cls] = cls(transaction)
        return found

    def add(self, connection: Transactional) -> None:
        """It works in the transaction."""
        self._connections.append(ref(connection))

    def __iter__(self) -> Iterator[Transactional]:
        for each in self._connections:
            if (connection := each()) is not None:
                yield connection

    def _require_left(self) -> None:
        for connection in self:
            connection.require_left()

    def _ended(self, status: Status) -> None:
        if status is not Status.COMMITTED:
            return
        for connection in self:
            self.hooks += connection.take_hooks(self._gtrid)
        if not self.begun_by_django:
            token = make_ambient(None)
            try:
                self.run_hooks(logging_errors=True)
            finally:
                restore_ambient(token)

    def run_hooks(self, *, logging_errors: bool = False) -> None:
        """Run the functions, each once. As Django does: an error of one that is not robust ends it, and is raised."""
        hooks, self.hooks = self.hooks, []
        while hooks:
            function, robust = hooks.pop(0)
            try:
                function()
            except Exception as error:
                if not (robust or logging_errors):
                    raise
                name = getattr(function, "__qualname__", repr(function))
                django_logger.error(
                    f"Error calling {name} in on_commit() during transaction (%s).", error, exc_info=True
                )

    def drop_hooks(self) -> None:
        """An interrupt keeps them from running."""
        hooks, self.hooks = self.hooks, []
        if hooks:
            logger.warning(
                "%s has committed, and an interrupt kept %d on_commit() from running", self._gtrid, len(hooks)
            )


def elsewhere(alias: str, gtrid: str, here: Transaction | None) -> TransactionManagementError:
    """The error of an alias that works in one transaction, and is used in another, or in none."""
    where = "no transaction is ambient here" if here is None else f"here {here.gtrid} is ambient"
    return TransactionManagementError(
        f"alias {alias!r} works in {gtrid}, and {where}: it can work in that again once this has ended, or that is "
        "resumed. Nothing was done. Another alias, or a connection of txpool.connect(), can work here."
    )
