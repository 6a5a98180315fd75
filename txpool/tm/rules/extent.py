"""The extent of a block: which frame is in it, and whether that has left it without the block's end.

An interrupt at the first instruction of an `__exit__` leaves nothing behind that would run. Who finds a transaction
ambient later asks here whether the `with` statement that has begun it is over. It is, for certain, in two cases:

* its frame has finished: a frame object owns the data of a finished frame, and of no other;
* its frame goes on at an instruction that is neither in the block nor in a call of its `__exit__`, by the table of
  exceptions and by the lines of the source.

A frame that is suspended within the block (of a generator, of a coroutine) is in neither case, nor is one in another
thread or greenlet. What was not entered by a `with` statement, as by an ExitStack, has no extent: only its last
reference tells that it is over.
"""

from __future__ import annotations

import contextlib
import dis
import gc
from collections.abc import Iterator, Sequence
from inspect import CO_GENERATOR
from sys import _getframe
from types import CodeType, FrameType
from typing import TypeAlias

#: The globals of the frames of an ExitStack, and of a function that contextmanager() has made a block.
CONTEXTLIB = vars(contextlib)

#: What a place is; within the block it is 0, for the quickest question.
WITHIN, _PERHAPS, _OUTSIDE = range(3)
#: A place where a block was entered: the code and the instruction; the places of the code, none if that is no
#: `with`; and whether a frame of it is all of the block's extent. The code is kept, so that its id stays its own.
Entrance: TypeAlias = tuple[tuple[CodeType, int], bytes, bool]
#: By the id of the code, and the instruction.
entrances: dict[tuple[int, int], Entrance] = {}
_MOST_KNOWN = 1000

#: Where a block is: its frame, the places of the frame's code, the instruction by which it was entered, and the extent
#: of the block that contextmanager() has made of the frame, a generator's. A plain tuple is unpacked fastest.
Extent: TypeAlias = "tuple[FrameType, bytes, int, Extent | None]"


def extent_of(frame: FrameType, entered_at: int) -> Extent | None:
    """The extent of a block that the frame enters; None if it does so by anything else than a `with`."""
    code = frame.f_code
    _, places, _ = entrances.get((id(code), entered_at)) or learn_entrance(frame)
    if not places:
        return None
    around = None
    if code.co_flags & CO_GENERATOR:
        caller = frame.f_back
        if caller is not None and caller.f_globals is CONTEXTLIB and caller.f_code.co_name == "__enter__":
            outer = caller.f_back
            around = None if outer is None else extent_of(outer, outer.f_lasti)
    return frame, places, entered_at, around


def learn_entrance(frame: FrameType) -> Entrance:
    """The entrance where the frame is, from now on among those that are known."""
    if len(entrances) >= _MOST_KNOWN:
        entrances.clear()
    code, entered_at = frame.f_code, frame.f_lasti
    places = _places(code, entered_at)
    learnt = (code, entered_at), places, bool(places) and not code.co_flags & CO_GENERATOR
    entrances[id(code), entered_at] = learnt
    return learnt


def is_over(extent: Extent) -> bool:
    """Whether one of the frames has left its block for certain."""
    frame, places, _, around = extent
    place = places[frame.f_lasti]
    if place != WITHIN and (place == _OUTSIDE or _has_finished(frame)):
        return True
    return around is not None and is_over(around)


def enters_again(extent: Extent, frame: FrameType, entered_at: int) -> bool:
    """Whether the frame is at the same `with` statement once more: so it has left its block."""
    return extent[0] is frame and extent[2] == entered_at


def _has_finished(frame: FrameType) -> bool:
    # The data of any other is on a stack, or in a generator.
    code = frame.f_code
    return any(each is code for each in gc.get_referents(frame))


def _places(code: CodeType, entered_at: int) -> bytes:
    """By instruction, whether it is in the block that was entered at this one; none if that is no `with`."""
    instructions = [*dis.get_instructions(code)]
    table = [*_exception_table(code.co_exceptiontable)]

    def handlers(offset: int) -> list[int]:
        """The handlers around an instruction, inner ones first."""
        found: list[int] = []
        while True:
            target = next((target for start, end, target in table if start <= offset < end), None)
            if target is None or target in found:
                return found
            found.append(target)
            offset = target

    behind = next((each.offset for each in instructions if each.offset > entered_at), -1)
    handler = next(iter(handlers(behind)), None)
    names = {each.offset: each.opname for each in instructions}
    if handler is None or names.get(handler + 2) != "WITH_EXCEPT_START" or handler in handlers(entered_at):
        return b""
    within = {each.offset for each in instructions if handler in handlers(each.offset)}
    lines = [_line(each) for each in instructions if each.offset in within or each.offset == entered_at]
    known = [line for line in lines if line is not None]
    places = bytearray()
    for number, each in enumerate(instructions):
        line, place = _line(each), _OUTSIDE
        if each.offset in within:
            place = WITHIN
        # A loop's jump back is not in the table, though it may be in the block.
        elif line is None or not known or min(known) <= line <= max(known) or _may_leave(instructions, number):
            place = _PERHAPS
        places += bytes([places[-1] if places else place]) * (each.offset - len(places))  # of the caches
        places.append(place)
    return bytes(places) + bytes([places[-1]]) * (len(code.co_code) - len(places))


def _may_leave(instructions: Sequence[dis.Instruction], number: int) -> bool:
    """Whether it may belong to a call of an `__exit__`: one with an exception, or one with three None."""
    if instructions[number].opname in ("PUSH_EXC_INFO", "WITH_EXCEPT_START"):
        return True
    for first in range(max(number - 4, 0), number + 2):
        three = instructions[first : first + 3]
        if len(three) == 3 and all(each.opname.startswith("LOAD_") and each.argval is None for each in three):
            return True
    return False


def _line(instruction: dis.Instruction) -> int | None:
    return None if instruction.positions is None else instruction.positions.lineno


def _exception_table(table: bytes) -> Iterator[tuple[int, int, int]]:
    """The start, the end and the handler of each entry (CPython: InternalDocs/exception_handling.md)."""
    data = iter(table)

    def number(byte: int) -> int:
        value = byte & 63
        while byte & 64:
            byte = next(data)
            value = value << 6 | byte & 63
        return value

    for first in data:
        start, length, target = 2 * number(first), 2 * number(next(data)), 2 * number(next(data))
        number(next(data))  # the depth of the stack
        yield start, start + length, target


def _gone() -> Extent:
    """One that is over."""

    def finish() -> FrameType:
        return _getframe()

    return finish(), bytes([_OUTSIDE]) * 10_000, 0, None


#: The extent of a block whose last reference is gone.
GONE = _gone()
#: As GONE, of a block that was ended for all who have a copy of its context, too: they work in no transaction now.
DISMISSED = _gone()
