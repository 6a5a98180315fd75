"""One pass's work on branches: the only place where recovery commits or rolls anything back."""

from __future__ import annotations

import time

from recovery.evidence import STRAYED, Evidence
from recovery.report import Account, Ended, LeftAlone
from recovery.sites import Seen, Sites
from txpool import failpoints
from txpool.log.base import DecisionLog, Heuristic
from txpool.resources.base import Answer, BranchRecord, ResourceManager

_WORDS = "or refused it (its words are logged at INFO); it is asked again"


class Work:
    """What the modules of one pass work with: the evidence, the means, and the account of what they do."""

    def __init__(self, evidence: Evidence, log: DecisionLog, sites: Sites, account: Account) -> None:
        self.evidence = evidence
        self.log = log
        self.sites = sites
        self.account = account

    def commit(self, record: BranchRecord, why: str) -> bool:
        """Commit a branch that a decision names; whether its database has answered, so that it needs no record."""
        manager = self._reachable(record)
        if manager is None:
            return False
        if failpoints.armed:
            failpoints.hit("recovery.branch")
        answer = manager.commit(record)
        if answer is Answer.UNKNOWN:
            self._leave(record, f"{record.datasource} gave no answer to its commit, {_WORDS}")
            return False
        if answer is Answer.ROLLED_BACK or (answer is Answer.LOST and record.evidence):
            self._heuristic(record, "commit", answer)
        elif self.evidence.was_listed(record):
            self.account.commit(Ended(record.xid.joined, record.datasource, why))
        # LOST without evidence is enough: it voted before it was decided, so what is absent was committed before.
        return True

    def roll_back(self, branch: Seen, why: str) -> None:
        """Roll a listed branch back, which its transaction's decision, or the lack of one, allows."""
        if failpoints.armed:
            failpoints.hit("recovery.branch")
        answer = self.sites.managers[branch.datasource].rollback(branch.record)
        if answer is Answer.UNKNOWN:
            self._leave(branch.record, f"{branch.datasource} gave no answer to its rollback, {_WORDS}")
        elif answer is Answer.COMMITTED:
            self._heuristic(branch.record, "rollback", answer)
        elif answer is Answer.ROLLED_BACK:
            self.account.roll_back(Ended(branch.xid.joined, branch.datasource, why))
        # LOST: another recoverer, or a person, was faster; the next listing lacks it.

    def settle(self, gtrid: str, named: tuple[BranchRecord, ...], why: str) -> bool:
        """Commit the named branches and roll the losers back; whether every named branch has answered."""
        answers = [self.commit(record, why) for record in named]
        names = {record.xid for record in named}
        for branch in self.evidence.seen(gtrid):
            if branch.xid not in names:
                self.roll_back(branch, "the decision does not name it")
        return all(answers)

    def leave(self, branch: Seen, reason: str, *, alarm: bool = True) -> None:
        """Write down that a listed branch is not touched, and why."""
        gtrid = branch.xid.gtrid
        self.account.leave(LeftAlone(gtrid, branch.xid.joined, branch.datasource, reason, alarm))

    def leave_all(self, gtrid: str, reason: str, *, alarm: bool = True) -> None:
        """The same for all of a transaction, whether anything of it is listed or not."""
        branches = self.evidence.seen(gtrid)
        for branch in branches:
            self.leave(branch, reason, alarm=alarm)
        if not branches:
            self.account.leave(LeftAlone(gtrid, "", "", reason, alarm))

    def _reachable(self, record: BranchRecord) -> ResourceManager | None:
        """The manager that can speak for the branch; None, with the reason written down, where there is none."""
        name = record.datasource
        if name not in self.evidence.listings:
            reason = self.evidence.silent.get(name)
            self._leave(
                record,
                f"{name} has not answered; the decision to commit is kept"
                if reason
                else f"{name} is no datasource of this configuration; the decision to commit is kept",
            )
            return None
        there = self.evidence.strayed(record)
        if there:
            self._leave(
                record,
                f"{name} {STRAYED}: it was {record.identity}, and this is {there} (a server's system identifier, and "
                "the oid of a database there). Correct its url, or this user's rights; the decision to commit is kept",
            )
            return None
        return self.sites.managers[name]

    def _leave(self, record: BranchRecord, reason: str) -> None:
        self.account.leave(LeftAlone(record.xid.gtrid, record.xid.joined, record.datasource, reason))

    def _heuristic(self, record: BranchRecord, decided: str, answer: Answer) -> None:
        if any(
            (known.gtrid, known.bqual) == (record.xid.gtrid, record.xid.bqual) for known in self.evidence.heuristics
        ):
            return
        found = Heuristic(record.xid.gtrid, record.xid.bqual, record.datasource, decided, answer.value, time.time())
        self.log.note(found)
        self.account.heuristic(found)
