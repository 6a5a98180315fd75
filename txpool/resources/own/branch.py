"""The branch of a transaction in a resource of a user's own, and recovery's access to that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from txpool.errors import OperationalError, TransactionRolledBack, described
from txpool.resources.base import BranchOutcome, BranchRecord, PrepareLocation, Refused
from txpool.resources.blocking import OpenBlockingBranch, RecoveryOneByOne
from txpool.resources.deadlines import NO_DEADLINES
from txpool.resources.own.awaited import Waits, finished
from txpool.resources.own.resource import Resource, Work
from txpool.resources.recovery_access import PreparedBranch
from txpool.xid import parse

logger = logging.getLogger("txpool")

_GENERATION = "generation"
#: Gives what a method of the resource's has come to.
Wait = Callable[[Any], Any]


def location_of(resource: Resource, wait: Wait = finished) -> PrepareLocation:
    """Where it prepares, for the log. OperationalError if it has no identity."""
    return PrepareLocation(resource.name, _identity_of(resource, wait), "", resource.file)


def _identity_of(resource: Resource, wait: Wait = finished) -> str:
    identity: str = wait(resource.identity())
    if not identity:
        raise OperationalError(
            f"resource {resource.name}: its identity is empty, so that recovery could not tell it from another. "
            "Nothing was prepared"
        )
    return identity


def leads_elsewhere(resource: Resource, record: BranchRecord, wait: Wait = finished) -> str:
    """Why it is not where the branch was prepared; empty if it is. OperationalError if it has no identity."""
    identity = _identity_of(resource, wait)
    if record.identity and record.identity != identity:
        return f"{resource.name} leads elsewhere now: to {identity}, not {record.identity}"
    return ""


def _outcome(
    resource: Resource, record: BranchRecord, *, commit: bool, until: float | None
) -> tuple[BranchOutcome, str]:
    """End a prepared branch: its outcome, and the reason if that is UNKNOWN. Raises no Exception."""
    wait = partial(finished, until=until)
    try:
        elsewhere = leads_elsewhere(resource, record, wait)
        if elsewhere:
            return BranchOutcome.UNKNOWN, elsewhere
        if wait((resource.commit if commit else resource.rollback)(record.xid.joined)):
            return BranchOutcome.COMMITTED if commit else BranchOutcome.ROLLED_BACK, ""
        generation = wait(resource.generation())
        same = bool(record.identity and generation) and record.evidence.get(_GENERATION) == generation
        return (BranchOutcome.ABSENT if same else BranchOutcome.LOST), ""
    except Exception as error:
        return BranchOutcome.UNKNOWN, described(error)


def _evidence(resource: Resource, wait: Wait = finished) -> Mapping[str, str]:
    generation = wait(resource.generation())
    return {_GENERATION: generation} if generation else {}


class ResourceBranch(OpenBlockingBranch):
    """The branch of a transaction in a resource of a user's own. Each step blocks where it is started."""

    def __init__(self, resource: Resource, work: Work, gtrid: str, waits: Waits | None = None) -> None:
        self._waits = waits = waits or Waits()
        super().__init__(work, location_of(resource, waits.before_decision), gtrid)
        self._resource = resource
        self._refused = False

    def end_prepared(self, *, commit: bool) -> tuple[BranchOutcome, str]:
        return _outcome(self._resource, self.record, commit=commit, until=self._waits.until())

    def start_prepare(self) -> None:
        wait = self._waits.before_decision
        self.record = self.record._replace(evidence=_evidence(self._resource, wait))
        self._begun = True
        try:
            wait(self._work.prepare(self.record.xid.joined))
        except Refused as refusal:
            self._refused = True
            raise TransactionRolledBack(
                f"resource {self.datasource} voted to roll back {self.record.xid.gtrid}: {refusal}",
                gtrid=self.record.xid.gtrid,
                datasource=self.datasource,
            ) from refusal
        except Exception as error:
            error.add_note(f"resource {self.datasource} voted to roll back {self.record.xid.gtrid}")
            raise
        self._prepared = True

    def start_rollback(self) -> None:
        """Nothing if PREPARE was not begun, or was refused: `await_rollback` undoes the work then."""
        if self._begun and not self._refused:
            super().start_rollback()

    def await_rollback(self) -> BranchOutcome:
        if not self._prepared:
            self._undo()
        if not self._begun or self._refused:
            return BranchOutcome.ROLLED_BACK
        outcome = super().await_rollback()
        # What is not there after a PREPARE without an answer may still appear.
        lost = outcome in (BranchOutcome.ABSENT, BranchOutcome.LOST)
        return BranchOutcome.UNKNOWN if lost and not self._prepared else outcome

    def _undo(self) -> None:
        try:
            finished(self._work.rollback(), self._waits.until())
        except Exception:
            logger.warning("%s: undoing work that is not prepared failed", self.datasource, exc_info=True)


def begin_work(resource: Resource, gtrid: str, waits: Waits | None = None) -> tuple[Work, ResourceBranch]:
    """The work of a new transaction, and its branch."""
    waits = waits or Waits()
    work: Work = waits.before_decision(resource.begin())
    return work, ResourceBranch(resource, work, gtrid, waits)


class ResourceRecovery(RecoveryOneByOne):
    """Recovery's access to what is prepared in a resource of a user's own. Thread-safe, as that is."""

    def __init__(self, resource: Resource) -> None:
        super().__init__()
        self._resource = resource

    def identity(self) -> str:
        return _identity_of(self._resource)

    def recover(self) -> list[PreparedBranch]:
        evidence = _evidence(self._resource)
        parsed = (parse(name) for name in finished(self._resource.prepared()))
        return [PreparedBranch(xid, evidence=evidence) for xid in parsed if xid is not None]

    def end(self, record: BranchRecord, *, commit: bool) -> tuple[BranchOutcome, str]:
        return _outcome(self._resource, record, commit=commit, until=NO_DEADLINES.after_decision())
