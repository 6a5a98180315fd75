"""A block that is left in another context than it was entered in: nobody could restore what was ambient there."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integration.tm.demarcation.table import OneDatasource
from txpool.errors import ProgrammingError
from txpool.tm.ambient import current
from txpool.tm.demarcation.block import transaction

_ELSEWHERE = "is left in another thread or context than it was entered in .*: what was done within it was rolled back"


def test_a_generator_that_goes_on_in_another_thread(world: OneDatasource) -> None:
    def work() -> Iterator[None]:
        with transaction():
            world.insert(world.datasource.connect(), 1)
            yield

    errors: list[BaseException] = []

    def go_on() -> None:
        try:
            next(generator, None)
        except BaseException as error:
            errors.append(error)

    generator = work()
    contextvars.copy_context().run(next, generator)
    thread = threading.Thread(target=go_on)
    thread.start()
    thread.join()
    with pytest.raises(ProgrammingError, match=_ELSEWHERE):
        raise errors[0]
    assert world.read() == []
    # Where it was entered, nothing is in the way.
    assert current() is None
    with transaction():
        world.insert(world.datasource.connect(), 2)
    assert world.read() == [2]


def test_a_dependency_whose_halves_run_in_copied_contexts(world: OneDatasource) -> None:
    """As web frameworks do with a synchronous one that yields."""

    @contextmanager
    def dependency() -> Iterator[None]:
        with transaction():
            world.insert(world.datasource.connect(), 1)
            yield

    block = dependency()
    contextvars.copy_context().run(block.__enter__)
    assert current() is None
    with pytest.raises(ProgrammingError, match=_ELSEWHERE):
        contextvars.copy_context().run(block.__exit__, None, None, None)
    block = dependency()
    contextvars.copy_context().run(block.__enter__)
    with pytest.raises(ProgrammingError, match=_ELSEWHERE) as raised:
        contextvars.copy_context().run(block.__exit__, ZeroDivisionError, ZeroDivisionError("the reason"), None)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert world.read() == []
