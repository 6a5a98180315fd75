"""The prepare() of a subordinate, struck at every place, and again at every place of what follows."""

from __future__ import annotations

import gc
from contextlib import suppress

import pytest

from tests.support.places import Striker, at_each_place, strike_each_pair
from txpool import Status
from txpool.resource import Resource, Work
from txpool.tm.completion.status import OPEN
from txpool.tm.own import OwnSource
from txpool.tm.subordinate import Subordinate

pytestmark = [
    pytest.mark.usefixtures("nobody_watches"),
    # An interrupt in a finaliser is shown, and swallowed.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Interrupt(BaseException):
    pass


class Shelf(Resource):
    """Keeps the names of what is prepared."""

    def __init__(self) -> None:
        super().__init__("shelf")
        self.names: list[str] = []

    def identity(self) -> str:
        return "here"

    def begin(self) -> Put:
        return Put(self)

    def prepared(self) -> list[str]:
        return self.names

    def commit(self, xid: str) -> bool:
        raise AssertionError("no task commits")

    rollback = commit


class Put(Work):
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def prepare(self, xid: str) -> None:
        self._shelf.names.append(xid)

    def rollback(self) -> None:
        """Nothing is there before it is prepared."""


def test_each_callback_is_called_once() -> None:
    seen: set[Status] = set()

    def strike(striker: Striker) -> None:
        shelf, told = Shelf(), list[Status]()
        task = Subordinate("txp1:driver:abcdefghijkl:1", write=2, partition=3, attempt=17)
        task.after_completion(told.append)
        task.after_completion(told.append)
        task.enlist_datasource(OwnSource(shelf))
        try:
            with at_each_place(striker):
                task.prepare()
        except Interrupt:
            if task.status in OPEN:
                assert not shelf.names, striker.places
                with suppress(Interrupt):
                    task.rollback()
        else:
            assert not striker.places, striker.places
        assert told == [task.status, task.status], striker.places
        assert task.status is Status.PREPARED or not shelf.names, striker.places
        seen.add(task.status)
        del task
        gc.collect(0)

    for _ in range(2):
        strike(Striker(1 << 30, Interrupt))
    places, pairs = strike_each_pair(Interrupt, strike)
    print(f"{places} places, {pairs} pairs")
    assert pairs > 500
    assert seen == {Status.PREPARED, Status.ROLLED_BACK}
