"""What people have done by hand, kept in the decision log: who, when, what, why, and what came of it.

Kept without a number of its format, since the version of before the notes reads no other keys.
"""

from __future__ import annotations

import json
import logging
import os
import pwd
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from recovery.scan.report import ScanReport
from txpool.errors import LogError, ProgrammingError
from txpool.log.base import DecisionLog, SideRecord
from txpool.log.formats import unpack

logger = logging.getLogger("txpool.recovery.audit")

_KIND = "audit"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One command of a person. `when` is wall-clock seconds, `gtrid` is empty where it concerns the whole node."""

    when: float
    who: str
    command: str
    gtrid: str
    reason: str
    #: done, unfinished, refused or failed, and what came of it; begun where the process has died in between, or the log
    #: has not answered.
    outcome: str


@contextmanager
def audited(log: DecisionLog, command: str, gtrid: str, reason: str) -> Iterator[list[ScanReport]]:
    """Keep a deed durably before the block does it, and afterwards what came of it. LogError: nothing was done.

    A block that has a report of what it did puts it into the list.
    """
    deed = AuditEntry(time.time(), current_user(), command, gtrid, reason, "begun")
    name = f"{deed.when:.6f} {secrets.token_hex(4)}"
    log.put_record(_side_record(name, deed))
    logger.warning("%s of %s by %s: %s", command, gtrid or log.node, deed.who, reason or "no reason was given")
    outcome, reports = "done", list[ScanReport]()
    try:
        yield reports
        outcome = " ".join(map(_outcome, reports)) or outcome
    except BaseException as error:
        verdict = "refused" if isinstance(error, ProgrammingError) else "failed"
        outcome = f"{verdict}: {' '.join(str(error).split()) or type(error).__name__}"
        raise
    finally:
        try:
            log.put_record(_side_record(name, replace(deed, outcome=outcome)))
        except LogError as error:
            logger.warning("%s of %s: the log keeps no outcome of it, which is %s: %s", command, gtrid, outcome, error)


def audit_entries(log: DecisionLog, gtrid: str | None = None) -> list[AuditEntry]:
    """Every deed, or a transaction's, oldest first. LogError."""
    found = [AuditEntry(**unpack(memo)) for memo in log.side_records(_KIND)]
    return [deed for deed in found if gtrid in (None, deed.gtrid)]


def current_user() -> str:
    """The user of this process, not of its environment, which anybody could set; behind sudo, both."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = f"uid {os.getuid()}"
    behind = os.environ.get("SUDO_USER")
    return f"{name}@{socket.gethostname()}" + (f" (sudo by {behind})" if behind else "")


def _outcome(report: ScanReport) -> str:
    verdict = "unfinished" if report.left_alone or report.unreachable else "done"
    left = (f"{each.datasource or each.gtrid}: {each.reason}" for each in report.left_alone)
    return "; ".join([f"{verdict}: {report}", *left])


def _side_record(name: str, deed: AuditEntry) -> SideRecord:
    return SideRecord(_KIND, name, json.dumps(asdict(deed)), deed.when)
