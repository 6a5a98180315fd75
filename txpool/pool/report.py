"""Messages of a pool: which threads and tasks hold its connections, since when, and why a take has timed out."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from itertools import islice
from threading import current_thread
from time import monotonic
from types import CodeType
from typing import TypeVar

from txpool.errors import chain
from txpool.pool.pooled import C, Pooled
from txpool.pool.waiting import TakeBudget

E = TypeVar("E", bound=BaseException)

#: How many of the innermost frames are kept of the stack that took a connection.
DEPTH = 16


def stack_of_caller() -> list[tuple[CodeType, int]]:
    """The stack above the pool's two methods, as code and line: it is formatted only when it is reported."""
    frames = traceback.walk_stack(sys._getframe(3))
    return [(frame.f_code, line) for frame, line in islice(frames, DEPTH)]


def format_stack(stack: Iterable[tuple[CodeType, int]]) -> str:
    frames = [traceback.FrameSummary(code.co_filename, line, code.co_name) for code, line in stack]
    return "".join(traceback.format_list(frames[::-1]))


def without_frames(error: E) -> E:
    """The error without its traceback, and those of its causes.

    Whoever keeps the error, as a log record may, would keep the frames of those who called the pool, and with them a
    connection that its user drops. The pool would wait for that in vain.
    """
    for each in chain(error, contexts=True):
        each.__traceback__ = None
    return error


def held_by(pooled: Pooled[C], now: float) -> str | None:
    """Who holds it, for how long, and where it was taken if that is known; None if it is not taken."""
    holder = next(iter(pooled.holder), None)
    if holder is None:
        return None
    thread = holder()
    text = f"thread {(thread or holder).name!r}"
    if holder.task:
        text = f"task {holder.task!r} of {text}"
    elif thread is current_thread():
        text += " (this one)"
    elif thread is None or not thread.is_alive():
        text += " (which has ended)"
    text += f" for {now - pooled.taken_at:.1f} s"
    return f"{text}, taken at\n{format_stack(pooled.stack).rstrip()}" if pooled.stack else text


def timeout_message(
    name: str,
    budget: TakeBudget,
    members: list[Pooled[C]],
    max_size: int,
    failure: str | None,
    *,
    hanging: bool,
    suspended: bool,
) -> str:
    """Why a take has timed out, and what to do; `hanging` if the server did not answer in time."""
    now = monotonic()
    holders = [text for pooled in members if (text := held_by(pooled, now)) is not None]
    opening = sum(not pooled.is_open for pooled in members)
    failed = "no connection that works was found" if hanging else "no connection came free"
    lines = [f"pool {name!r}: {failed} within {budget.wait:g} s ({len(holders)} of {max_size} are in use)"]
    lines += [f"held by {text}" for text in holders]
    if budget.silent:
        silent = "1 idle connection" if budget.silent == 1 else f"{budget.silent} idle connections"
        lines.append(f"{silent} did not answer in time: dropped")
    if opening:
        lines.append(f"{opening} being opened")
    if failure is not None:
        lines.append(f"the last attempt to connect failed with {failure}")
    if suspended:
        lines.append("the pool is suspended, and hands out no connection before resume_pool()")
    elif hanging:
        lines.append("nothing was executed; see whether the server, and the network to it, still answers")
    else:
        lines.append("close connections sooner, raise pool.max-size, or raise pool.max-wait")
    return "\n  ".join(line.replace("\n", "\n  ") for line in lines)
