"""The thread that looks into statements that execute for long. It starts once a pool has opened a connection.

A pool's connections say since when they execute (`Pooled.since`), or their transaction ends: a COMMIT or a PREPARE
may wait, too, for a deferred constraint. That is read here, and costs a statement no lock.
Each look opens a connection of its own, and closes it. A forked child has a thread of its own, once one of its pools
has opened a connection.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Iterator
from contextvars import Context
from pkgutil import resolve_name
from time import monotonic
from typing import Final

from txpool import datasource
from txpool.config.settings import CoordinatorSettings
from txpool.datasource import DataSource, Source, opened
from txpool.errors import Error, described
from txpool.jobs.bypass import in_task
from txpool.locks import Lock
from txpool.pool.pooled import Pooled
from txpool.resources.deadlines import step_until
from txpool.resources.lock_holders import KnowsSessions
from txpool.tm import manager
from txpool.waits.settling import Settling
from txpool.waits.statement import WaitingStatement

logger = logging.getLogger("txpool.waits")

#: Seconds that a server has to answer one look.
_LOOK_SECONDS: Final = 5.0
#: Seconds between two looks into the same statement, at most: what it waits for may be prepared later.
_LONGEST_PAUSE: Final = 60.0
_SHORTEST_PAUSE: Final = 0.01

#: A connection, by its id, and when its statement has begun.
Statement = tuple[int, float]


class Watcher:
    """Looks into statements, each at longer and longer intervals, until it has reported it. Used by one thread."""

    def __init__(self) -> None:
        #: When to look into each statement next, by the monotonic clock.
        self._due: dict[Statement, float] = {}
        self._settling = Settling()

    def look(self, after: float) -> float:
        """Look into the statements that have executed for so many seconds. Returns the seconds to the next look."""
        now = monotonic()
        due: dict[Statement, float] = {}
        waits: dict[Statement, WaitingStatement] = {}
        for source in opened():
            if isinstance(source, DataSource) and source.resource_manager.lock_holders is not None:
                late = self._late(source, now, after, due)
                waits |= _waits(source, late) if late else {}
        self._due = due | dict.fromkeys(waits, math.inf)
        for wait in waits.values():
            logger.warning("%s", wait)
        if waits and not in_task():  # tasks never recover
            self._settling.settle(waits.values())
        return max(min([now + after, *self._due.values()]) - monotonic(), _SHORTEST_PAUSE)

    def _late(self, source: DataSource, now: float, after: float, due: dict[Statement, float]) -> list[Pooled[object]]:
        """The connections whose statements are due. `due` gets when each statement is due next."""
        late = []
        for pooled in source.pool.state.all():
            since = pooled.since or pooled.completing_since
            if since and pooled.holder and not (pooled.plain and getattr(pooled.raw, "behind_pooler", False)):
                at = self._due.get((id(pooled), since), since + after)
                if at <= now:
                    late.append(pooled)
                    at = now + min(max(now - since, after), _LONGEST_PAUSE)
                due[id(pooled), since] = at
        return late


def _waits(source: DataSource, late: list[Pooled[object]]) -> dict[Statement, WaitingStatement]:
    """Those that wait for prepared branches of ours. Whether they do may not be known: then that is logged."""
    begun = [pooled.since or pooled.completing_since for pooled in late]
    try:
        holders = resolve_name(source.resource_manager.lock_holders or "")(source.settings, source.driver_adapter)
        with step_until(monotonic() + _LOOK_SECONDS):
            found = holders.holders([pooled.raw for pooled in late])
            sessions: list[list[int]] = [[] for _ in late]
            if not all(found) and isinstance(holders, KnowsSessions):
                sessions = holders.sessions([pooled.raw for pooled in late])
    except Exception as error:
        logger.info("%s: what a statement waits for is not known at the moment: %s", source.name, described(error))
        return {}
    waits = {}
    for pooled, since, held, held_by in zip(late, begun, found, sessions, strict=True):
        gtrid = "" if pooled.plain else pooled.gtrid
        thread = "".join(map(str, pooled.holder[:1]))
        # What its own transaction has prepared is Spark's, whose driver sees to it: no recovery would end that.
        branches = tuple(branch for branch in held if branch.xid.gtrid != gtrid)
        work = () if branches else tuple(_work(source, {*held_by}))
        if (branches or work) and since in (pooled.since, pooled.completing_since):  # else it has ended meanwhile
            waits[id(pooled), since] = WaitingStatement(
                source, gtrid, thread, monotonic() - since, branches, holders.certain, work
            )
    return waits


def _work(source: DataSource, sessions: set[int]) -> Iterator[str]:
    """Who has these sessions, if connections of this pool do."""
    for pooled in source.pool.state.all():
        if pooled.holder and pooled.is_open and getattr(pooled.raw, "session_number", None) in sessions:
            who = "work outside any transaction" if pooled.plain else pooled.gtrid
            thread = "".join(map(str, pooled.holder[:1]))
            since = monotonic() - pooled.taken_at
            yield f"{who}, of this process, whose connection was taken {since:.1f} s ago in {thread}"


# -- the thread -------------------------------------------------------------------------------------------------------

_starting = Lock()
_thread: threading.Thread | None = None
_wake = threading.Event()
#: The value of transaction.wait-report, once it is known.
_after: list[float | None] = []


def configured(settings: CoordinatorSettings) -> None:
    """Look into statements from now on as these settings say."""
    _after[:] = [settings.transaction_wait_report]
    _wake.set()
    start_when_used()


def start_when_used() -> None:
    """Start the thread, unless it runs, once a pool has opened a connection. Never raises."""
    global _thread
    if (_thread is not None and _thread.is_alive()) or not any(map(_is_used, opened())):
        return
    if not _after:
        try:
            _after[:] = [manager.settings_in_force().transaction_wait_report]
        except Error as error:  # the first transaction will say it
            logger.debug("what statements wait for is not looked into: %s", described(error))
            return
    if _after[0] is None:
        return
    with _starting:
        if _thread is not None and _thread.is_alive():
            return
        # An empty context: the thread must not inherit the transaction in which it happened to start.
        _thread = threading.Thread(target=Context().run, args=(_run,), name="txpool-waits", daemon=True)
        try:
            _thread.start()
        except RuntimeError as error:  # the interpreter is ending, or there are too many
            logger.debug("what statements wait for is not looked into: %s", error)


def _is_used(source: Source) -> bool:
    return bool(isinstance(source, DataSource) and source.resource_manager.lock_holders and source.pool.state.members)


def _run() -> None:
    watcher, failed = Watcher(), False
    while (after := _after[0]) is not None and threading.current_thread() is _thread:
        try:
            pause, failed = watcher.look(after), False
        except Exception as error:
            level = logging.INFO if failed else logging.WARNING
            logger.log(level, "looking into what statements wait for has failed: %s", described(error))
            pause, failed = after, True
        _wake.wait(pause)
        _wake.clear()


def _after_fork_in_child() -> None:
    global _starting, _thread, _wake
    _starting, _thread, _wake = Lock(), None, threading.Event()


manager.when_configured.append(configured)
datasource.when_used.append(start_when_used)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
