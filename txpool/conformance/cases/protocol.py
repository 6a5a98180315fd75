"""The cases of the small protocol: what whatever prepares has promised, database or not."""

from __future__ import annotations

from txpool.conformance.cases.case import require
from txpool.conformance.subject import GONE, Subject
from txpool.resources.base import BranchOutcome, BranchRecord, forget_ends, remembers_end

COMMITTED, ROLLED_BACK, UNKNOWN = BranchOutcome.COMMITTED, BranchOutcome.ROLLED_BACK, BranchOutcome.UNKNOWN


def undone(subject: Subject) -> None:
    """What has only begun takes no part; what is not prepared is undone by a rollback, and never listed."""
    idle = subject.client()
    require(idle.branch.idle, "a branch is not idle before anything was done in it: it would be prepared")
    require(idle.roll_back() is ROLLED_BACK, "a branch without work could not be rolled back")
    client = subject.client()
    key = client.write()
    require(not client.branch.idle, "a branch is idle after something was written in it: the coordinator would lose it")
    subject.require_visible(key, False, "before its PREPARE")
    require(client.roll_back() is ROLLED_BACK, "work that was not prepared could not be rolled back")
    client.drop()
    subject.require_visible(key, False, "though its work was rolled back before its PREPARE")
    require(not subject.listed(), "a branch is listed that was rolled back before its PREPARE")


def named_again(subject: Subject) -> None:
    """The last name before PREPARE counts; the first, if branches are named before their first work."""
    first, last = subject.new_xid(), subject.new_xid()
    client = subject.client(first)
    key = client.write()
    client.branch.name(last)
    client.xid = first if subject.datasource.resource_manager.names_early else last
    record = client.prepare()
    require(subject.listed() == {client.xid}, "a branch that was named twice is not listed under the name that counts")
    require(subject.finish(record, commit=True) is COMMITTED, "a branch that was named twice could not be committed")
    subject.require_visible(key, True, "after its branch was committed, which was named twice")


def gone(subject: Subject) -> None:
    """A branch that is gone counts as ended as decided only in its own place, and only if the record proves that."""
    client, _, record = subject.prepared()
    require(record.identity, "the record of a branch has no identity: nothing is ever proven of one that is gone")
    for commit, verb, truth in ((True, "commit", COMMITTED), (False, "rollback", ROLLED_BACK)):
        if not commit:
            client, _, record = subject.prepared()
        client.drop()
        require(subject.finish(record, commit=commit) is truth, f"the {verb} of a prepared branch was not answered")
        for without, what in ((record._replace(evidence={}), "evidence"), (_nowhere(record), "identity")):
            outcome = subject.recovery().commit(without)
            require(
                outcome in (UNKNOWN, BranchOutcome.LOST, BranchOutcome.NO_ROW, truth),
                f"a branch that is gone was answered {outcome.value!r} after its {verb}, though its record has no "
                f"{what}: a branch that a failover has lost would count as committed",
            )
        outcome = subject.recovery().commit(record._replace(identity="another place"))
        require(
            outcome in (UNKNOWN, BranchOutcome.LOST),
            f"a branch of another place was answered {outcome.value!r}: its absence here would count as its end",
        )


def _nowhere(record: BranchRecord) -> BranchRecord:
    return record._replace(identity="", evidence={})


def forgotten(subject: Subject) -> None:
    """What has ended as it was to leaves nothing to forget, and to have it forgotten does no harm."""
    for commit in (True, False):
        client, key, record = subject.prepared()
        outcome = client.commit_prepared() if commit else client.roll_back()
        require(outcome is (COMMITTED if commit else ROLLED_BACK), f"a prepared branch has ended as {outcome.value!r}")
        require(not remembers_end(client.branch), "a branch that has ended as decided is remembered as a heuristic one")
        forget_ends([client.branch])
        client.drop()
        require(record.xid not in subject.listed(), "a branch is listed after its end was forgotten")
        require(subject.finish(record, commit=commit) in {*GONE, outcome}, "a branch came back after its end")
        subject.require_visible(key, commit, "after its branch has ended, and that was forgotten")
