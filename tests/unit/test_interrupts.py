"""CPython looks for signals where a loop jumps back: that jump must be in the try or with block that the loop is in.

Otherwise an interrupt that comes there leaves a lock held, or skips an `except`. Since 3.12 the compiler turns the end
of `while condition:` into two jumps, and leaves the backward one out of the block; `while True:` with a `break` has one
jump, in the block. The same happens to a comprehension in the block, and to a loop that ends with an `if`; since 3.14
to `any()` and `all()` of a generator, which become loops, but no longer to `while condition:`. (3.12 itself takes
another instruction for the place of the interrupt, and is right nevertheless: cpython#108214.)
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import txpool
from tests.support.interrupts import at_each_check

PACKAGE = Path(txpool.__file__).parent
#: The rooms whose locks and transactions an interrupt must leave in order.
ROOMS = ("aio/poller.py", "datasource", "dbapi", "process", "log", "pool", "tm", "waits", "web")


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def left_out(code: CodeType) -> Iterator[int]:
    """The lines of backward jumps that are not in the block that their target and the code before them are in."""
    table: list[Any] = list(dis._parse_exception_table(code))  # type: ignore[attr-defined]

    def blocks(offset: int) -> list[int]:
        """The handlers around an instruction, inner ones first: those of the source, not of a comprehension."""
        for each in table:
            if each.start <= offset < each.end:
                return [each.target] * (names[each.target] == "PUSH_EXC_INFO") + blocks(each.target)
        return []

    instructions = list(dis.get_instructions(code)) if table else []
    names = {each.offset: each.opname for each in instructions}
    line, before = code.co_firstlineno, 0
    for each in instructions:
        line = (each.positions and each.positions.lineno) or line
        if "JUMP_BACKWARD" in each.opname and "NO_INTERRUPT" not in each.opname:
            around = blocks(each.argval)[:1]
            if around and around[0] in blocks(before) and around[0] not in blocks(each.offset):
                yield line
        if not each.opname.startswith(("POP_JUMP", "EXTENDED_ARG", "NOP", "NOT_TAKEN")):
            before = each.offset


def test_where_interrupts_come() -> None:
    """At the start of a function, after a call, and where a loop jumps back."""

    def called() -> int:
        return 1

    def calling() -> None:
        for _ in range(1):
            called()

    places: list[tuple[str, int]] = []

    def strike(frame: FrameType) -> None:
        places.append((frame.f_code.co_name, frame.f_lineno - frame.f_code.co_firstlineno))

    with at_each_check({called.__code__, calling.__code__}, strike):
        calling()
    assert [place for number, place in enumerate(places) if place not in places[:number]] == [
        ("calling", 0), ("calling", 1), ("called", 0), ("calling", 2),
    ]  # fmt: skip


#: With the versions of Python that leave a jump out.
LEFT_OUT = {
    "while queue: queue.pop()": (12, 13),
    "for each in queue:\n  if each: queue.pop()": (12, 13, 14),
    "found = any(each for each in queue)": (14,),
}
INSIDE = [
    "while True:\n  if not queue: break\n  queue.pop()",
    "for each in queue: queue.pop()",
]


def lines_of(loop: str) -> list[int]:
    source = "def f(lock, queue):\n with lock:\n  " + loop.replace("\n", "\n  ")
    (function,) = [each for each in codes(compile(source, "", "exec")) if each.co_name == "f"]
    return list(left_out(function))


def test_it_finds_a_jump_that_was_left_out() -> None:
    assert {loop: bool(lines_of(loop)) for loop in LEFT_OUT} == {
        loop: sys.version_info.minor in versions for loop, versions in LEFT_OUT.items()
    }
    assert [bool(lines_of(loop)) for loop in INSIDE] == [False, False]


@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="Python 3.12 is right with such jumps")
def test_an_interrupt_where_a_loop_jumps_back_is_in_the_block_of_the_loop() -> None:
    files = [file for room in ROOMS for file in PACKAGE.glob(room if room.endswith(".py") else f"{room}/**/*.py")]
    found = {
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in files
        for code in codes(compile(path.read_text(), str(path), "exec"))
        for line in left_out(code)
    }
    assert len(files) > 50
    assert not found
