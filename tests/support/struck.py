"""An interrupt at the first instruction of a function, where nothing of it could have caught that."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def struck(function: Callable[..., Any], interrupt: type[BaseException] = KeyboardInterrupt) -> Iterator[list[str]]:
    """Within the block, the first call of the function in this thread raises that before it has done anything.

    Gives a list that has the function's name once that has come.
    """
    code, came = function.__code__, list[str]()  # type: ignore[attr-defined]

    def trace(frame: FrameType, event: str, _: Any) -> None:
        if frame.f_code is code and not came:
            came.append(code.co_name)
            raise interrupt

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        yield came
    finally:
        sys.settrace(former)
