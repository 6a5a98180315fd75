"""What each code of an XAException makes of a branch; and interrupts between the steps of a commit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txpool
from tests.conftest import Databases
from tests.support.jdbc_places import KINDS, JdbcPlaces
from txpool import failpoints
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.branches.phase_two import PhaseTwoReply, PhaseTwoVerb, ReplyKind
from txpool.resources.jdbc.branches import codes
from txpool.resources.jdbc.databases.derby import Derby
from txpool.resources.jdbc.dbapi.errors import OperationalError
from txpool.resources.jdbc.jvm import jvm
from txpool.xid import make_gtrid, make_xid, new_incarnation

if TYPE_CHECKING:
    from tests.support.jdbc import Jars

COMMITTED, ROLLED_BACK, LOST = BranchOutcome.COMMITTED, BranchOutcome.ROLLED_BACK, BranchOutcome.LOST
RECORD = BranchRecord(make_xid(make_gtrid("tests", new_incarnation(), 1), 0, "orders"), "orders")


class Answers:
    """A connection whose XAResource answers by an XAException: no database here ends a branch by itself."""

    def __init__(self, code: int) -> None:
        self.xa = self
        self._code = code

    def commit(self, xid: Any, one_phase: bool) -> None:
        raise jvm.started().load("javax.transaction.xa.XAException")(self._code)

    def rollback(self, xid: Any) -> None:
        raise jvm.started().load("javax.transaction.xa.XAException")(self._code)


@pytest.mark.parametrize(
    ("code", "kind", "outcome"),
    [
        (codes.XA_HEURCOM, ReplyKind.BY_ITSELF, COMMITTED),
        (codes.XA_HEURRB, ReplyKind.BY_ITSELF, ROLLED_BACK),
        (codes.XA_HEURMIX, ReplyKind.BY_ITSELF, LOST),
        (codes.XA_HEURHAZ, ReplyKind.BY_ITSELF, LOST),
        *((code, ReplyKind.BY_ITSELF, ROLLED_BACK) for code in codes.ROLLED_BACK),
        (codes.XA_RETRY, ReplyKind.REFUSED, None),
        (codes.XAER_PROTO, ReplyKind.REFUSED, None),
        (codes.XAER_INVAL, ReplyKind.REFUSED, None),
        (codes.XAER_NOTA, ReplyKind.GONE, None),
    ],
)
@pytest.mark.parametrize("verb", [PhaseTwoVerb.COMMIT, PhaseTwoVerb.ROLLBACK])
def test_what_a_code_says(
    jdbc_jars: Jars, verb: PhaseTwoVerb, code: int, kind: ReplyKind, outcome: BranchOutcome | None
) -> None:
    jvm.started(jdbc_jars.derby)
    answer: PhaseTwoReply = Derby().finish(Answers(code), RECORD, verb, own=True)
    assert answer.kind is kind
    assert codes.name_of(code) in answer.why
    if outcome is not None:
        assert answer.outcome is outcome
    assert answer.remembered is (code in codes.HEURISTIC)


@pytest.mark.parametrize("code", [codes.XAER_RMFAIL, codes.XAER_RMERR, 0, -99])
def test_a_code_that_says_nothing_is_no_answer(jdbc_jars: Jars, code: int) -> None:
    jvm.started(jdbc_jars.derby)
    with pytest.raises(OperationalError):
        Derby().finish(Answers(code), RECORD, PhaseTwoVerb.COMMIT, own=True)


@pytest.fixture
def both(jdbc_places: JdbcPlaces, databases: Databases, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """A datasource over JDBC, and PostgreSQL over psycopg; decided in a log."""
    txpool.configure(node_name="etl-1", log_url=f"sqlite:///{tmp_path}/txlog", log_create=True)
    java = jdbc_places.open(request.param)
    databases.execute("two", "create table t (id int)")
    with databases.datasource("two", "psycopg") as psycopg:
        yield java, psycopg
    failpoints.disarm()
    txpool.configure()


@pytest.mark.parametrize("both", KINDS, indirect=True)
def test_an_interrupt_between_the_steps(both: Any, jdbc_places: JdbcPlaces, databases: Databases) -> None:
    java, psycopg = both
    points = (("branch.prepare-sent", False), ("coordinator.prepared", False), ("branch.commit-sent", True))
    for number, (point, committed) in enumerate(points):
        failpoints.arm(point, "interrupt")
        with pytest.raises(KeyboardInterrupt), txpool.transaction():
            java.connect().cursor().execute("insert into t (id) values (?)", (number,))
            psycopg.connect().cursor().execute("insert into t (id) values (%s)", (number,))
        failpoints.disarm()
        assert (number in jdbc_places.rows(java)) is committed, point
    assert databases.rows("two", "select id from t") == [(2,)]
    assert jdbc_places.rows(java) == [2]
    assert java.branch_recovery().recover() == []
    assert databases.prepared() == []


@pytest.mark.parametrize("both", ["derby", "mariadb"], indirect=True)
def test_a_branch_that_has_only_read(both: Any, jdbc_places: JdbcPlaces, databases: Databases) -> None:
    """Derby answers PREPARE by XA_RDONLY: the branch has ended then."""
    java, psycopg = both
    for number in (1, 2):
        with txpool.transaction():
            cursor = java.connect().cursor()
            cursor.execute("select id from t")
            assert cursor.fetchall() == []
            psycopg.connect().cursor().execute("insert into t (id) values (%s)", (number,))
    assert databases.rows("two", "select id from t order by id") == [(1,), (2,)]
    assert java.branch_recovery().recover() == []
