"""The cases of every mode: what a local transaction says of itself at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

from txpool.conformance.cases.case import NotRun, require
from txpool.conformance.client import Client
from txpool.conformance.subject import GONE, Subject
from txpool.conformance.workload import StatementWorkload, attempted
from txpool.errors import HeuristicError, TransactionInDoubt
from txpool.resources.base import BranchOutcome, PrepareVote

#: Ends a client's transaction with the wish to commit; whether the answer was that it has committed. None: in doubt.
End = Callable[[Client], bool | None]


def _ends(subject: Subject) -> Iterator[tuple[str, End]]:
    yield "COMMIT", _commit
    if subject.mode == "xa":
        yield "PREPARE", _prepare_and_commit
    if subject.mode == "cmr":
        yield "the marked row", _mark_and_commit


def _commit(client: Client) -> bool | None:
    try:
        client.end()
    except (HeuristicError, TransactionInDoubt):
        return None
    except Exception:
        return False
    return True


def _prepare_and_commit(client: Client) -> bool | None:
    try:
        vote = client.vote()
    except Exception:
        return _rolled_back(client.roll_back())
    if vote is PrepareVote.READ_ONLY:
        return True
    outcome = client.commit_prepared()
    return None if outcome in GONE or outcome is BranchOutcome.UNKNOWN else outcome is BranchOutcome.COMMITTED


def _mark_and_commit(client: Client) -> bool | None:
    try:
        client.decide(client.mark())
    except Exception:
        return _rolled_back(client.branch.rollback())
    return True


def _rolled_back(outcome: BranchOutcome) -> bool | None:
    """False if a rollback was answered as such; None if it was said that not all of it was rolled back."""
    return False if outcome is BranchOutcome.ROLLED_BACK else None


def swallowed_failure(subject: Subject) -> None:
    """After a statement that failed, and whose error was swallowed, all of the rest commits, or the end says no."""
    workload = _statements(subject)
    for name, end in _ends(subject):
        client = subject.client()
        keys = [client.write()]
        require(attempted(client.do, workload.fail), "the kit's failing statement did not fail")
        keys.append(client.attempt_write() or keys[0])
        committed = end(client)
        client.drop()
        for key in keys:
            if committed is not None:
                said = "was answered as success" if committed else "was refused"
                subject.require_visible(key, committed, f"after {name} {said}, which followed a failed statement")


def own_commit(subject: Subject) -> None:
    """If the user's own SQL has ended the transaction, its end does not report success for a part of the work."""
    workload = _statements(subject)
    for command in ("commit", "rollback"):
        for name, end in _ends(subject):
            client = subject.client()
            keys = [client.write()]
            attempted(client.do, workload.end_by_hand, command)
            torn = subject.workload.visible(keys[0])
            late = client.attempt_write()
            keys += [late] if late else []
            committed = end(client)
            client.drop()
            require(
                not (torn and committed),
                f"{name} was answered as success, and the user's own COMMIT had committed a part before the others",
            )
            for key in keys:
                if committed is not None:
                    said = "was answered as success" if committed else "was refused"
                    subject.require_visible(key, committed, f"after {name} {said}, which followed a user's {command}")


def reader(subject: Subject) -> None:
    """One that has written is never taken for a reader; one that has only read ends, and leaves nothing prepared."""
    workload = _statements(subject)
    for writes_first in (True, False):
        client = subject.client()
        key = client.write() if writes_first else None
        client.do(workload.read)
        key = key or client.write()
        require(not _only_read(client), "a transaction that has written was taken for one that has only read")
        require(_commit(client) is not False, "a transaction that has written, and then was asked, could not commit")
        client.drop()
        subject.require_visible(key, True, "after its transaction has committed")
    client = subject.client()
    client.do(workload.read)
    check = client.branch.read_only_check(committing=True)
    if check is not None:
        check.start_asking()
        if check.await_answer():
            check.require_alive()
            check.start_commit()
            check.await_commit()
            client.drop()
            _require_nothing_prepared(subject, client)
            return
    if subject.mode == "xa":
        if client.vote() is PrepareVote.COMMIT:
            outcome = client.commit_prepared()
            require(outcome is BranchOutcome.COMMITTED, f"the commit of one that has only read: {outcome.value}")
    else:
        require(_commit(client) is not False, "a transaction that has only read could not commit")
    client.drop()
    _require_nothing_prepared(subject, client)


def _only_read(client: Client) -> bool:
    for committing in (True, False):
        check = client.branch.read_only_check(committing=committing)
        if check is not None:
            check.start_asking()
            if check.await_answer():
                return True
    return False


def _require_nothing_prepared(subject: Subject, client: Client) -> None:
    if subject.mode == "xa":
        require(client.xid not in subject.listed(), "one that has only read has left a prepared branch")


def _statements(subject: Subject) -> StatementWorkload:
    for method in ("read", "fail", "end_by_hand"):
        if not hasattr(subject.workload, method):
            raise NotRun("its work does not consist of statements")
    return cast(StatementWorkload, subject.workload)
