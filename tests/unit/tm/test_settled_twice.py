"""The end of a transaction, struck at every place, and again at places of what follows: it ends, and tells so once.

It is struck again at one in eight of these places; TXPOOL_CRASH_FULL=1 strikes all.
"""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest

import txpool
from tests.support.places import Striker, at_each_place, strike_each_pair
from tests.support.sampling import FULL
from txpool import Status
from txpool.metrics import instruments
from txpool.tm.ambient import ambient_variable
from txpool.tm.completion.status import OPEN

pytestmark = [
    pytest.mark.usefixtures("nobody_watches"),
    # An interrupt in a finaliser is shown, and swallowed.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Interrupt(BaseException):
    pass


class Finished:
    """One transaction with a row of this number, and what its callbacks were told."""

    def __init__(self, source: txpool.DataSource, number: int) -> None:
        self.told: list[Status] = []
        self.tx = txpool.begin()
        self.tx.after_completion(self.told.append)
        self.tx.after_completion(self.told.append)
        source.connect().execute("insert into t values (?)", (number,))

    def end(self, finish: Callable[[], None], striker: Striker) -> Status:
        """End it so while it is struck; if it is open then, roll back as its owner would. Returns its status."""
        try:
            with at_each_place(striker):
                finish()
        except (Interrupt, txpool.Error):
            pass
        else:
            assert not striker.places, striker.places
        if self.tx.status in OPEN:
            with suppress(txpool.Error):
                self.tx.rollback()
        ambient_variable.set(None)
        return self.tx.status


@pytest.mark.parametrize("watched", [False, True], ids=["alone", "phases"])
@pytest.mark.parametrize("finish", [txpool.commit, txpool.rollback])
def test_each_callback_is_called_once_with_the_final_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finish: Callable[[], None], *, watched: bool
) -> None:
    monkeypatch.setattr(instruments, "armed", watched)  # then the coordinator ends it, phase by phase
    seen: set[Status] = set()
    with (
        txpool.DataSource(name="one", driver="sqlite3", mode="local", url=f"sqlite:///{tmp_path}/one.db") as source,
        closing(sqlite3.connect(tmp_path / "one.db", isolation_level=None)) as reader,
    ):
        reader.execute("pragma journal_mode = wal")
        reader.execute("create table t (n integer primary key)")
        numbers = iter(range(1 << 30))

        def strike(striker: Striker) -> None:
            number = next(numbers)
            ended = Finished(source, number)
            status = ended.end(finish, striker)
            seen.add(status)
            assert ended.told == [status, status], striker.places
            ((rows,),) = reader.execute("select count(*) from t where n = ?", (number,))
            assert (rows, status) in POSSIBLE, striker.places
            del ended
            gc.collect(0)

        for _ in range(2):
            strike(Striker(1 << 30, Interrupt))
        places, pairs = strike_each_pair(Interrupt, partial(strike), every=1 if FULL else 8)
    print(f"{places} places, {pairs} pairs")
    assert pairs > 200
    assert Status.ROLLED_BACK in seen
    assert (Status.COMMITTED in seen) is (finish is txpool.commit)


#: The rows that are there, with the status.
POSSIBLE = {
    (1, Status.COMMITTED),
    (0, Status.ROLLED_BACK),
    (1, Status.IN_DOUBT),
    (0, Status.IN_DOUBT),
}
