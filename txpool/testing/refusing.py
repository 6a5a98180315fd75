"""A participant that refuses to prepare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from txpool.log.base import DecisionLog
from txpool.resource import Refused, Resource, Work
from txpool.tm.observers import observe
from txpool.tm.transaction import Transaction

_NAME = "refusing-to-prepare"


@contextmanager
def refusing_to_prepare(reason: str = "a test refuses to prepare") -> Iterator[None]:
    """In each transaction of this process that commits within the block, one more takes part, which votes to roll back.

    The others have begun their PREPARE then, or done it, and are rolled back by their databases: the transaction ends
    with TransactionRolledBack. It needs a decision log, as every transaction over two databases does.
    """
    resource, logs = _Refusing(_NAME), dict[int, DecisionLog]()

    def enlist(transaction: Transaction) -> None:
        resource.reason = reason
        transaction.enlist(resource)
        if transaction.log is not None:
            logs[id(transaction.log)] = transaction.log

    stop = observe(enlist, "before")
    try:
        yield
    finally:
        stop()
        for log in logs.values():  # nothing was prepared there, and recovery need not look
            log.retire_locations([note for note in log.locations() if note.location.datasource == _NAME])


class _Refusing(Resource):
    reason = ""

    def identity(self) -> str:
        return _NAME

    def begin(self) -> Work:
        return _RefusingWork(self)

    def prepared(self) -> Iterable[str]:
        return ()

    def commit(self, xid: str) -> bool:
        return False

    def rollback(self, xid: str) -> bool:
        return False


class _RefusingWork(Work):
    def __init__(self, resource: _Refusing) -> None:
        self._resource = resource

    def prepare(self, xid: str) -> None:
        raise Refused(self._resource.reason)

    def rollback(self) -> None:
        """Nothing: there is no work."""
