"""What a pool tells people: who holds its connections, and since when."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from itertools import islice
from threading import current_thread
from time import monotonic
from types import CodeType

from txpool.pool.budget import TakeBudget
from txpool.pool.pooled import C, Pooled

#: Innermost frames are the ones that tell where a connection was taken.
DEPTH = 16


def stack_of_caller() -> list[tuple[CodeType, int]]:
    """The stack above our caller, cheap to take: it is formatted only if somebody asks."""
    frames = traceback.walk_stack(sys._getframe(2))
    return [(frame.f_code, line) for frame, line in islice(frames, DEPTH)]


def format_stack(stack: Iterable[tuple[CodeType, int]]) -> str:
    frames = [traceback.FrameSummary(code.co_filename, line, code.co_name) for code, line in stack]
    return "".join(traceback.format_list(frames[::-1]))


def held_by(pooled: Pooled[C], now: float) -> str | None:
    """Who holds it, for how long, and where it was taken if that is known; None when nobody does."""
    holder = next(iter(pooled.holder), None)
    if holder is None:
        return None
    who = f"thread {holder.name!r}"
    if holder is current_thread():
        who += " (this one)"
    elif not holder.is_alive():
        who += " (which has ended)"
    text = f"{who} for {now - pooled.taken_at:.1f} s"
    return f"{text}, taken at\n{format_stack(pooled.stack).rstrip()}" if pooled.stack else text


def timeout_message(
    name: str, budget: TakeBudget, members: list[Pooled[C]], max_size: int, failure: str | None, *, hanging: bool
) -> str:
    """Why nobody could get a connection, and what to do; `hanging` where it was the server that took the time."""
    now = monotonic()
    holders = [text for pooled in members if (text := held_by(pooled, now)) is not None]
    opening = sum(not pooled.is_open for pooled in members)
    what = "no connection that works was found" if hanging else "no connection came free"
    lines = [f"pool {name!r}: {what} within {budget.wait:g} s ({len(holders)} of {max_size} are in use)"]
    lines += [f"held by {text}" for text in holders]
    if budget.silent:
        some = "1 idle connection" if budget.silent == 1 else f"{budget.silent} idle connections"
        lines.append(f"{some} did not answer in time: dropped")
    if opening:
        lines.append(f"{opening} being opened")
    if failure is not None:
        lines.append(f"the last attempt to connect failed with {failure}")
    if hanging:
        lines.append("nothing was executed; see whether the server, and the network to it, still answers")
    else:
        lines.append("close connections sooner, raise pool.max-size, or raise pool.max-wait")
    return "\n  ".join(line.replace("\n", "\n  ") for line in lines)
