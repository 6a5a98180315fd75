"""The cases of mode xa: branches that are prepared, and ended from elsewhere."""

from __future__ import annotations

from functools import partial

from txpool.conformance.cases.case import Violation, at_once, require
from txpool.conformance.subject import GONE, NODE, Subject
from txpool.errors import described
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.xid import MAX_PART, TaskName, Xid, make_gtrid, make_xid

COMMITTED, ROLLED_BACK, UNKNOWN = BranchOutcome.COMMITTED, BranchOutcome.ROLLED_BACK, BranchOutcome.UNKNOWN
_VERBS = {True: ("commit", COMMITTED), False: ("rollback", ROLLED_BACK)}
_ROUNDS = 5  # of a race


def _finish(subject: Subject, record: BranchRecord, *, commit: bool, way: str = "recovery") -> None:
    verb, expected = _VERBS[commit]
    outcome = subject.finish(record, commit=commit, way=way)
    require(outcome is expected, f"{way}: the {verb} of a prepared branch was answered {outcome.value!r}")


def dropped_client(subject: Subject) -> None:
    """What is prepared outlives its client, and any other connection can commit it and roll it back."""
    for way in subject.finishers():
        for commit in (True, False):
            client, key, record = subject.prepared()
            subject.require_visible(key, False, "while its branch is prepared and not committed")
            client.drop()
            require(record.xid in subject.listed(), "a prepared branch is not listed once its client is gone")
            _finish(subject, record, commit=commit, way=way)
            subject.require_visible(key, commit, f"after its branch was ended from elsewhere by {way}")
            require(record.xid not in subject.listed(), f"a branch is still listed after {way} has ended it")


def killed_server(subject: Subject) -> None:
    """What is prepared outlives the server."""
    subject.require_server()
    first, second = subject.prepared(), subject.prepared()
    open_client = subject.client()
    open_key = open_client.write()
    subject.kill_server()
    for client in (first[0], second[0], open_client):
        client.drop()
    listed = subject.listed()
    require({first[2].xid, second[2].xid} <= listed, "a prepared branch is gone after the server was killed")
    require(open_client.xid not in listed, "a branch that was never prepared is listed after the server was killed")
    _finish(subject, first[2], commit=True)
    _finish(subject, second[2], commit=False)
    subject.require_visible(first[1], True, "after its branch outlived the server's end and was committed")
    subject.require_visible(second[1], False, "after its branch outlived the server's end and was rolled back")
    subject.require_visible(open_key, False, "though the server was killed before its PREPARE")


def unknown_xid(subject: Subject) -> None:
    """A database never says that it has committed, or rolled back, a branch that it does not have."""
    never = BranchRecord(subject.new_xid(), subject.name, subject.recovery().identity())
    for way in subject.finishers():
        for commit, (verb, _) in _VERBS.items():
            outcome = subject.finish(never, commit=commit, way=way)
            require(
                outcome in GONE,
                f"{way}: the {verb} of a branch that was never prepared was answered {outcome.value!r}: recovery would "
                "report what has not happened, or ask for ever",
            )
        for ended_by_commit, (ended, truth) in _VERBS.items():
            client, _key, record = subject.prepared()
            client.drop()
            _finish(subject, record, commit=ended_by_commit, way=way)
            for commit, (verb, _) in _VERBS.items():
                outcome = subject.finish(record, commit=commit, way=way)
                require(
                    outcome in GONE or outcome is truth,
                    f"{way}: the {verb} of a branch after its {ended} was answered {outcome.value!r}",
                )


def duplicate_xid(subject: Subject) -> None:
    """A second PREPARE under a name that is prepared is refused, and neither it nor its rollback touches the first."""
    first, key, record = subject.prepared()
    refused, second_key = "", None
    second = None
    try:
        second = subject.client(record.xid)
        second_key = second.write()
        second.vote()
    except Exception as error:  # the vote to roll back
        refused = described(error)
    require(refused, "a second branch was prepared under the name of one that is prepared")
    if second is not None:
        second.roll_back()
        second.drop()
    require(record.xid in subject.listed(), "the rollback of a branch whose PREPARE was refused ended another's branch")
    require(first.commit_prepared() is COMMITTED, "a branch could not commit after another's PREPARE under its name")
    first.drop()
    subject.require_visible(key, True, "after its branch has committed, whose name another wanted, too")
    subject.require_visible(second_key, False, "though its PREPARE was refused")


def foreign_xid(subject: Subject) -> None:
    """What is prepared under names that are not exactly of txpool's form is not listed, so that nobody ends it."""
    own, _, record = subject.prepared()
    gtrid = subject.new_gtrid()
    names = [
        Xid(f"other-product-{subject.incarnation}", "1"),
        Xid(gtrid.replace("txp1:", "txp2:"), f"0:{subject.name[:16]}:L"),  # a later version's
        Xid(f"{gtrid}-", f"0:{subject.name[:16]}:L"),
    ]
    for name in names:
        client = subject.client(name)
        key = client.write()
        try:
            client.prepare()
        except Exception:  # to refuse such a name is right as well
            client.roll_back()
            client.drop()
            continue
        require(record.xid in subject.listed(), "a branch is not listed while another product's is prepared")
        listed = {each.joined for each in subject.listed()}
        require(
            not any(subject.incarnation in each and each != record.xid.joined for each in listed),
            f"a branch with the foreign name {name.joined} is listed as one of txpool's: recovery could roll it back",
        )
        require(client.commit_prepared() is COMMITTED, f"a branch with the name {name.joined} could not commit")
        client.drop()
        subject.require_visible(key, True, "after its branch has committed, whose name is another product's")
    require(own.roll_back() is ROLLED_BACK, "a branch could not roll back while another product's was prepared")
    own.drop()


def limits_of_names(subject: Subject) -> None:
    """The longest names, and names that differ in little, are as many branches; each is ended alone."""
    number = subject.new_gtrid().rpartition(":")[2].rjust(12, "0")
    longest = make_gtrid(NODE.ljust(28, "-"), subject.incarnation, 1).removesuffix(":1") + f":{number}"
    task = TaskName(1, 22, 33, 44)
    bqual = make_xid(longest, 9999, "d" * 16, decider="m" * 16, identity="i" * 12, task=task).bqual
    gtrid = subject.new_gtrid()
    names = [
        Xid(longest, bqual),
        Xid(longest, f"{bqual[:-1]}5"),
        make_xid(gtrid, 0, "ab"),
        make_xid(gtrid, 0, "aB"),
        make_xid(gtrid.replace(NODE, NODE.title()), 0, "ab"),
    ]
    require(len(bqual) == MAX_PART, f"the kit's own longest name has {len(bqual)} characters")
    branches = []
    for name in names:
        try:
            branches.append(subject.prepared(name))
        except Exception as error:
            raise Violation(f"a branch with the name {name.joined} was refused: {described(error)}") from error
    for client, _, record in branches:
        client.drop()
        require(record.xid in subject.listed(), f"the branch {record.xid.joined} is not listed under its name")
    for number_of, (_, key, record) in enumerate(branches):
        _finish(subject, record, commit=number_of % 2 == 0)
        subject.require_visible(key, number_of % 2 == 0, f"after the branch {record.xid.joined} was ended")
        rest = {record.xid for _, _, record in branches[number_of + 1 :]}
        require(subject.listed() == rest, f"the end of {record.xid.joined} ended a branch with another name as well")


def listing(subject: Subject) -> None:
    """The listing has exactly what is prepared, of this database, and says whose it is."""
    recovery = subject.recovery()
    identity = recovery.identity()
    require(
        identity,
        "the resource manager does not tell the database's identity: recovery counts it as unanswered. `txpool check`, "
        "without --conformance, says what this user lacks for that",
    )
    require(recovery.identity() == identity, "the database's identity is another each time it is asked for")
    client = subject.client()
    client.write()
    require(client.xid not in subject.listed(), "a branch is listed before its PREPARE")
    location = client.branch.location
    require(location.datasource == subject.name, f"its location names the datasource {location.datasource!r}")
    require(
        location.identity == identity,
        f"its location is {location.identity!r}, and recovery's access leads to {identity!r}: recovery would not look "
        "where the log says that it prepares",
    )
    record = client.prepare()
    require(record.datasource == subject.name, f"its record names the datasource {record.datasource!r}")
    require(record.identity == identity, f"its record has the identity {record.identity!r}, and recovery {identity!r}")
    others = [subject.prepared() for _ in range(3)]
    expected = {record.xid, *(each[2].xid for each in others)}
    found = [each for each in recovery.recover() if each.xid in expected]
    require({each.xid for each in found} == expected, f"of {len(expected)} prepared branches {len(found)} are listed")
    require(len(found) == len(expected), "a prepared branch is listed more than once")
    logins = {*recovery.logins(), location.role}
    for each in found:
        require(not each.elsewhere, "a branch of this database is listed as one of another database")
        require(each.prepared_by(logins), f"its owner is said to be {each.owner}, whose the datasource is not")
    require(client.roll_back() is ROLLED_BACK, "a prepared branch could not be rolled back by its own session")
    require(client.xid not in subject.listed(), "a branch is still listed after its rollback")
    for other, _, their_record in others:
        require(other.commit_prepared() is COMMITTED, "a prepared branch could not be committed by its own session")
        require(their_record.xid not in subject.listed(), "a branch is still listed after its commit")


def two_finishing(subject: Subject) -> None:
    """Two that end one branch at once do no harm, and neither says what is not true."""
    for verbs in ((True, True), (False, False), (True, False)):
        for _ in range(_ROUNDS):
            _race(subject, verbs)


def _race(subject: Subject, verbs: tuple[bool, bool]) -> None:
    client, key, record = subject.prepared()
    client.drop()
    outcomes: list[BranchOutcome] = []

    def end(commit: bool) -> None:
        outcomes.append(subject.finish(record, commit=commit))

    at_once([partial(end, each) for each in verbs])
    committed = subject.workload.visible(key)
    truth, untrue = (COMMITTED, ROLLED_BACK) if committed else (ROLLED_BACK, COMMITTED)
    said = " and ".join(each.value for each in outcomes)
    require(untrue not in outcomes, f"two that ended one branch were told {said}, and it was {truth.value}")
    require(truth in outcomes, f"two that ended one branch were told {said}: neither knows that it has ended")
    require(record.xid not in subject.listed(), "a branch that two have ended at once is still listed")
    if verbs[0] is verbs[1]:
        subject.require_visible(key, verbs[0], "after two have ended its branch in the same way")


def hanging_owner(subject: Subject) -> None:
    """A client that hangs after its PREPARE does not keep its branch from being ended, and hears no untruth later."""
    hanging = [(commit, late, subject.prepared()) for commit in (True, False) for late in (True, False)]
    for commit, commits_late, (client, key, record) in hanging:
        _finish(subject, record, commit=commit)
        subject.require_visible(key, commit, "after its branch was ended while its client hung")
        heard = client.commit_prepared() if commits_late else client.roll_back()
        verb, truth, untrue = "commit", COMMITTED, ROLLED_BACK
        if not commit:
            verb, truth, untrue = "rollback", ROLLED_BACK, COMMITTED
        require(
            heard is not untrue,
            f"a client that woke up after the {verb} of its branch by somebody else was told {heard.value!r} and not "
            f"{truth.value!r}: a heuristic outcome would go unseen",
        )
        client.drop()
        subject.require_visible(key, commit, "after its client woke up")
