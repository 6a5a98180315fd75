"""Calls a function wherever CPython looks for signals, and for exceptions that other threads have set, in some code.

That is at the start of a function, after a call, and where a loop jumps back. What the function raises is raised there.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import get_ident
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

_CALLS = ("CALL",)
#: Since 3.12 it looks before these, and an exception is raised within them; 3.11 looks after them.
_BEFORE = ("RESUME", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")
_TOOL = 3


@contextmanager
def at_each_check(codes: set[CodeType], strike: Callable[[FrameType], object]) -> Iterator[None]:
    """Within the block, in this thread: call `strike` with the frame of one of the codes."""
    monitored = sys.version_info >= (3, 12)
    arrive = _Places(strike, looks_before=monitored).arrive
    with (_monitoring if monitored else _tracing)(codes, arrive, strike):
        yield


def codes_of(module: ModuleType) -> set[CodeType]:
    """The code of all functions of a module, with those that they contain."""
    found: set[CodeType] = set()

    def add(code: CodeType) -> None:
        found.add(code)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                add(constant)

    for value in [*vars(module).values()]:
        for each in [value, *vars(value).values()] if isinstance(value, type) else [value]:
            if isinstance(each, FunctionType) and each.__code__.co_filename == module.__file__:
                add(each.__code__)
    return found


def interrupted_somewhere(work: Callable[[], object], codes: set[CodeType]) -> Iterator[None]:
    """Do the work again and again, with an interrupt at each place of these codes in turn, until all had one."""
    number, reached = 1, True
    while reached:
        places = 0

        def strike(_: object) -> None:
            nonlocal places
            places += 1
            if places == number:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt), at_each_check(codes, strike):
            work()
        yield
        reached = places >= number
        number += 1


class _Places:
    """Tells which instructions are places, from the instructions of each frame as they come."""

    def __init__(self, strike: Callable[[FrameType], object], *, looks_before: bool) -> None:
        self._strike = strike
        self._names_now = _BEFORE if looks_before else ()
        self._names_before = _CALLS if looks_before else _CALLS + _BEFORE
        self._last: dict[FrameType, int] = {}

    def arrive(self, frame: FrameType, offset: int) -> None:
        code = frame.f_code.co_code
        while dis.opname[code[offset]] == "EXTENDED_ARG":
            offset += 2
        last, self._last[frame] = self._last.get(frame), offset
        if dis.opname[code[offset]].startswith(self._names_now) or self._has_looked(code, last, offset):
            self._strike(frame)

    def _has_looked(self, code: bytes, last: int | None, now: int) -> bool:
        name = "" if last is None else dis.opname[code[last]]
        if last is None or not name.startswith(self._names_before):
            return False
        # What has raised is followed by its handler. A call's caches are zeros, as CACHE is.
        return "JUMP" in name or not any(code[last + 2 : now : 2])


@contextmanager
def _tracing(
    codes: set[CodeType], arrive: Callable[[FrameType, int], None], begin: Callable[[FrameType], object]
) -> Iterator[None]:
    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code not in codes:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            arrive(frame, frame.f_lasti)
        elif event == "call" and frame.f_code.co_code[frame.f_lasti + 1] < 2:  # RESUME, not behind `yield from`
            begin(frame)
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(former)


@contextmanager
def _monitoring(
    codes: set[CodeType], arrive: Callable[[FrameType, int], None], begin: Callable[[FrameType], object]
) -> Iterator[None]:
    """A trace function is told of opcodes only from a function's second traced call on, in 3.12 and 3.13."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    thread = get_ident()

    def instruction(_: CodeType, offset: int) -> None:
        if get_ident() == thread:
            arrive(sys._getframe(1), offset)

    def start(*_: object) -> None:
        if get_ident() == thread:
            begin(sys._getframe(1))

    monitoring.use_tool_id(_TOOL, "interrupts")
    monitoring.register_callback(_TOOL, monitoring.events.INSTRUCTION, instruction)
    monitoring.register_callback(_TOOL, monitoring.events.PY_START, start)
    for code in codes:
        monitoring.set_local_events(_TOOL, code, monitoring.events.INSTRUCTION | monitoring.events.PY_START)
    try:
        yield
    finally:
        for code in codes:
            monitoring.set_local_events(_TOOL, code, 0)
        monitoring.register_callback(_TOOL, monitoring.events.INSTRUCTION, None)
        monitoring.register_callback(_TOOL, monitoring.events.PY_START, None)
        monitoring.free_tool_id(_TOOL)
