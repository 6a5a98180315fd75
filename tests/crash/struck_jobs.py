"""An interrupt at each of a job's places, in files of code that a test names."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType

import txpool
from tests.support.interrupts import at_each_check


class Struck(BaseException):
    """Stands for KeyboardInterrupt."""


def count_places(job: Callable[[], object], codes: set[CodeType]) -> int:
    """Run the job: how many places there are at which an interrupt could come."""
    count = 0

    def counting(frame: FrameType) -> None:
        nonlocal count
        count += 1

    with at_each_check(codes, counting):
        job()
    return count


def interrupted(job: Callable[[], object], codes: set[CodeType], nth: int) -> BaseException | None:
    """Run the job with an interrupt at the n-th place: what was told."""
    count = 0

    def strike(frame: FrameType) -> None:
        nonlocal count
        count += 1
        if count == nth:
            raise Struck

    try:
        with at_each_check(codes, strike):
            job()
    except (Struck, txpool.Error) as error:
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return error
    return None
