"""What interrupts leave at a transaction's end: its connections come back, and what was sent is not called undone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

import txpool
from tests.integration.tm.three_databases import ThreeDatabases
from tests.support.struck import struck
from txpool.pool import Pool
from txpool.resources.postgresql.session.libpq import LibpqSession
from txpool.tm.transaction import Transaction


class TimeLimit(Exception):
    """What the handler of a signal raises, as Celery's does."""


@pytest.mark.parametrize("function", [Transaction._release, Pool.give_back])
@pytest.mark.parametrize("kept", [False, True], ids=["", "traceback kept"])
def test_no_connection_is_lost_behind_the_outcome(
    world: ThreeDatabases, function: Callable[..., Any], kept: bool
) -> None:
    """One interrupt each, as often as there are connections."""
    size = world.one.settings.pool_max_size
    for number in range(size):
        with struck(function) as came, pytest.raises(KeyboardInterrupt) as error, txpool.transaction():
            world.insert(world.one, value=number)
        assert came
        if kept:
            sys.last_traceback = error.tb
        del error
    with ExitStack() as stack:
        for _ in range(size):
            stack.enter_context(closing(world.one.connect(timeout=5))).execute("select 1")
    sys.last_traceback = None
    assert world.held == (size, 0, 0)
    assert world.one.statistics().taken == 0


@contextmanager
def prepared_and_struck_twice() -> Iterator[list[str]]:
    """Within the block, the answer to a PREPARE that was sent is awaited in vain, two times."""
    came: list[str] = []

    receive = LibpqSession.receive

    def interrupted(self: LibpqSession, until: float | None = None) -> Any:
        if came.count("receive") < 2:
            came.append("receive")
            raise TimeLimit
        return receive(self, until)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LibpqSession, "receive", interrupted)
        yield came


def test_what_was_sent_is_never_called_rolled_back(world: ThreeDatabases) -> None:
    """Two exceptions of a signal's handler: in PREPARE, and in the rollback. The branch may be prepared, or appear."""
    from recovery import RecoveryManager

    text = "node.name = here\nlog.url = sqlite:///txlog\nrecovery.backoff = 0\n"
    text += "datasources = one.properties, two.properties\n"
    (world.folder / "recovery.properties").write_text(text)
    for name in ("one", "two"):
        url, password = world.databases.url(name), world.databases.server.password
        file = world.folder / f"{name}.properties"
        file.write_text(f"driver = psycopg\nurl = {url}\npassword = {password}\n")
        file.chmod(0o600)
    with pytest.raises((TimeLimit, txpool.Error)) as error, txpool.transaction():
        world.insert(world.one, world.two)
        stack = ExitStack()
        came = stack.enter_context(prepared_and_struck_twice())
    stack.close()
    assert came == ["receive", "receive"]
    left = world.databases.prepared()
    said = " ".join([str(error.value), *getattr(error.value, "__notes__", ())])
    assert not left or "recovery will finish one" in said, said
    RecoveryManager(world.folder / "recovery.properties").scan()
    assert world.databases.prepared() == []  # it has a finished mark, though this process lives on
    assert world.held == (0, 0, 0)
