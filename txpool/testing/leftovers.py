"""Assertions that nothing is left of any transaction, and one scan of recovery."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from txpool.datasource import DataSource, opened
from txpool.tm.ambient import current
from txpool.tm.manager import get_manager

if TYPE_CHECKING:
    from recovery import ScanReport


def recover_once(conf: str | Path) -> ScanReport:
    """Let recovery scan once, as `txpool-recovery scan --conf FILE` does, without its pause between two passes.

    Errors: ConfigurationError, LogError. What it could not end, and why, is in the report.
    """
    with closing(_manager(conf)) as manager:
        report: ScanReport = manager.scan()
    return report


def assert_nothing_left(conf: str | Path) -> None:
    """AssertionError with all that is left of transactions, as the databases, the log and this process's pools say.

    `conf` is the file of recovery. These are left: a prepared branch; a transaction in doubt, or one with a heuristic
    outcome; a connection that is taken out of a pool here; a transaction that is ambient here. A datasource that does
    not answer, or that the file does not name, is also an error: nobody knows what is there. Nothing is written.
    """
    left = []
    if (ambient := current()) is not None:
        left.append(f"{ambient.gtrid} is ambient here, {ambient.status.value}")
    if unsettled := get_manager().in_doubt:
        left.append(f"{unsettled} transactions of this process are in doubt, and its resolver tries them")
    for datasource in opened():
        if isinstance(datasource, DataSource) and (numbers := datasource.statistics()).taken + numbers.waiting:
            left.append(f"{numbers.taken} connections of {numbers.name} are taken, and {numbers.waiting} wait for one")
    with closing(_manager(conf)) as manager:
        for each in manager.in_doubt():
            branches = "; ".join(f"{branch.datasource}: {branch.state}" for branch in each.branches)
            left.append(f"{each.gtrid} ({each.decision}): {branches}. Next: {each.next}")
        left += [f"{name} does not answer: {why}" for name, why in manager.unanswered.items()]
        left += [f"{name}: {why}" for name, why in manager.unconfigured.items()]
    if left:
        raise AssertionError("left of transactions:\n" + "\n".join(left))


def _manager(conf: str | Path) -> Any:
    """Recovery's manager: by name, since recovery imports txpool, and txpool does not import recovery."""
    return resolve_name("recovery:RecoveryManager")(conf, backoff=0)
