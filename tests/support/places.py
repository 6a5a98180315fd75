"""Raises an exception at the n-th place of this package's code at which CPython takes an interrupt.

These places are the start of a function, behind a call, and where a loop jumps back. There CPython calls the handlers
of signals, and raises what another thread has set. No code of txpool's is left out. A finaliser, where an interrupt is
shown and swallowed, is struck as well: what it has left undone then is what the tests look for.
"""

from __future__ import annotations

import dis
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

import txpool
from txpool.tm.rules.extent import _exception_table as exception_table

_PACKAGE = str(Path(txpool.__file__).parent) + "/"
_LATER = sys.version_info >= (3, 12)
_TOOL = 4

#: What arrives at a place: the frame that is there.
Strike = Callable[[FrameType], object]


class Striker:
    """Raises at the n-th place, and, where `again` is given, at that place of those that follow."""

    def __init__(self, nth: int, kind: type[BaseException], again: int | None = None) -> None:
        self._left, self._kind, self._again = nth, kind, again
        #: Where it has struck: function and line.
        self.places: list[str] = []
        #: How many places there were since the last strike.
        self.seen = 0

    def __call__(self, frame: FrameType) -> None:
        self.seen += 1
        if self._left < 0:
            return
        self._left -= 1
        if self._left < 0:
            if self._again is not None:
                self._left, self._again = self._again, None
            self.seen = 0
            code = frame.f_code
            self.places.append(f"{code.co_filename.removeprefix(_PACKAGE)}:{frame.f_lineno} {code.co_qualname}")
            raise self._kind("struck")

    @property
    def spent(self) -> bool:
        """Whether it will not strike any more."""
        return self._left < 0


def strike_each_pair(
    kind: type[BaseException], strike: Callable[[Striker], object], *, every: int = 1
) -> tuple[int, int]:
    """Have each place struck, and then each place of what follows. Returns how many places, and pairs, there were.

    With `every` only one in so many of those that follow is struck: other ones behind each first place.
    """
    pairs = 0
    for first in itertools.count():
        for second in itertools.count(first % every, every):
            striker = Striker(first, kind, second)
            strike(striker)
            pairs += len(striker.places) == 2
            if len(striker.places) < 2:
                break
        if not striker.places:
            return first, pairs
    raise AssertionError  # it counts for ever


@contextmanager
def at_each_place(strike: Striker, *, whole: bool = False) -> Iterator[None]:
    """Within the block, in this thread, strike at each place; with `whole` also when it will not raise any more."""
    with (_monitoring if _LATER else _tracing)(strike, whole=whole):
        yield


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(_PACKAGE)


# -- Python 3.11 -------------------------------------------------------------------------------------------------------


@cache
def _places(code: CodeType) -> tuple[bytes, bytes]:
    """By instruction: whether it is a call or a jump back; and the number of the handler around it."""
    calls, handlers = bytearray(len(code.co_code)), bytearray(len(code.co_code))
    for number, (start, end, _) in enumerate(exception_table(code.co_exceptiontable)):
        handlers[start:end] = bytes([number % 255 + 1]) * (end - start)
    for each in dis.get_instructions(code):
        if each.opname in ("CALL", "CALL_FUNCTION_EX"):
            calls[each.offset] = 1
        elif "JUMP_BACKWARD" in each.opname and "NO_INTERRUPT" not in each.opname:
            calls[each.offset] = 2
    return bytes(calls), bytes(handlers)


@contextmanager
def _tracing(strike: Striker, *, whole: bool) -> Iterator[None]:
    """A trace function that raises is taken off, and so is a profiler: the other one strikes the second time."""
    last: dict[FrameType, int] = {}
    traced = False  # it was the trace function that has struck

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal traced
        traced = True
        code = frame.f_code
        if not _is_ours(code) or (strike.spent and not whole):
            return None
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if code.co_code[frame.f_lasti + 1] < 2:  # RESUME, not behind `yield`
                strike(frame)
            return trace
        if event == "opcode":
            now, before = frame.f_lasti, last.get(frame)
            last[frame] = now
            if before is not None:
                calls, handlers = _places(code)
                # An exception behind a call is raised within its try; so is one at the next instruction, if that is
                # in the same one. Else the profiler has struck there.
                if calls[before] and handlers[before] == handlers[now] and now > before - 2 * (calls[before] == 1):
                    strike(frame)
        elif event == "return":
            last.pop(frame, None)
        return trace

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal traced
        code = frame.f_code
        if strike.places and traced:
            starts = event == "call" and code.co_code[frame.f_lasti + 1] < 2
            if (starts or event == "c_return") and _is_ours(code) and not (strike.spent and not whole):
                strike(frame)
            return
        if event != "c_return" or not _is_ours(code) or (strike.spent and not whole):
            return
        _, handlers = _places(code)
        behind = next((each for each in range(frame.f_lasti + 2, len(handlers), 2) if code.co_code[each]), None)
        if behind is not None and handlers[frame.f_lasti] != handlers[behind]:
            last.pop(frame, None)
            traced = False
            strike(frame)

    tracing, profiling = sys.gettrace(), sys.getprofile()
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(profiling)
        sys.settrace(tracing)
        last.clear()


# -- later -------------------------------------------------------------------------------------------------------------


@contextmanager
def _monitoring(strike: Striker, *, whole: bool) -> Iterator[None]:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    events, thread = monitoring.events, get_ident()

    def arrive(code: CodeType, *_: object) -> None:
        if _is_ours(code) and get_ident() == thread and not (strike.spent and not whole):
            strike(sys._getframe(1))

    def jump(code: CodeType, offset: int, target: int) -> None:
        if target <= offset and _is_ours(code) and get_ident() == thread and not (strike.spent and not whole):
            strike(sys._getframe(1))

    monitoring.use_tool_id(_TOOL, "interrupts")
    callbacks = {events.PY_START: arrive, events.C_RETURN: arrive, events.JUMP: jump}
    for event, callback in callbacks.items():
        monitoring.register_callback(_TOOL, event, callback)
    jumps = events.JUMP if sys.version_info >= (3, 14) else 0  # before, what is raised there passes each `finally` by
    monitoring.set_events(_TOOL, events.PY_START | events.CALL | jumps)
    try:
        yield
    finally:
        monitoring.set_events(_TOOL, 0)
        for event in callbacks:
            monitoring.register_callback(_TOOL, event, None)
        monitoring.free_tool_id(_TOOL)
