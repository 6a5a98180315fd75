"""The audit of commands by hand, stored in the decision log: who ran which command, when, why, and with what outcome.

An entry is stored without a format number, since versions before the location notes read no other keys.
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
from txpool.errors import LogError, ProgrammingError, described
from txpool.log.base import DecisionLog, SideRecord
from txpool.log.formats import unpack

logger = logging.getLogger("txpool.recovery.audit")

_KIND = "audit"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One command of a person. `when` is wall-clock seconds. `gtrid` is empty if it concerns the whole node."""

    when: float
    who: str
    command: str
    gtrid: str
    reason: str
    #: done, unfinished, refused or failed, with details. It stays "begun" if the process died during the command, or
    #: if the log did not take the outcome.
    outcome: str


@contextmanager
def audited(log: DecisionLog, command: str, gtrid: str, reason: str) -> Iterator[list[ScanReport]]:
    """Store an entry durably before the block runs, and its outcome afterwards. A block may add a report to the list.

    Errors: LogError if the entry cannot be stored; the block has not run then.
    """
    entry = AuditEntry(time.time(), current_user(), command, gtrid, reason, "begun")
    name = f"{entry.when:.6f} {secrets.token_hex(4)}"
    log.put_record(_side_record(name, entry))
    logger.warning("%s of %s by %s: %s", command, gtrid or log.node, entry.who, reason or "no reason was given")
    outcome, reports = "done", list[ScanReport]()
    try:
        yield reports
        outcome = " ".join(map(_outcome, reports)) or outcome
    except BaseException as error:
        refused = isinstance(error, ProgrammingError)
        outcome = " ".join(f"{'refused' if refused else 'failed'}: {error if refused else described(error)}".split())
        raise
    finally:
        try:
            log.put_record(_side_record(name, replace(entry, outcome=outcome)))
        except LogError as error:
            logger.warning(
                "%s of %s: the log could not store the outcome, which is %s: %s", command, gtrid, outcome, error
            )


def audit_entries(log: DecisionLog, gtrid: str | None = None) -> list[AuditEntry]:
    """All entries, or those of one transaction, oldest first. Errors: LogError."""
    found = [AuditEntry(**unpack(record)) for record in log.side_records(_KIND)]
    return [entry for entry in found if gtrid in (None, entry.gtrid)]


def current_user() -> str:
    """The user that this process runs as, and with sudo also the user who called it.

    Other variables of the environment are not read, since anybody could set them.
    """
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = f"uid {os.getuid()}"
    caller = os.environ.get("SUDO_USER")
    return f"{name}@{socket.gethostname()}" + (f" (sudo by {caller})" if caller else "")


def _outcome(report: ScanReport) -> str:
    verdict = "unfinished" if report.left_alone or report.unreachable else "done"
    left = (f"{each.datasource or each.gtrid}: {each.reason}" for each in report.left_alone)
    return "; ".join([f"{verdict}: {report}", *left])


def _side_record(name: str, entry: AuditEntry) -> SideRecord:
    return SideRecord(_KIND, name, json.dumps(asdict(entry)), entry.when)
