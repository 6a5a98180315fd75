"""What the program's own SQL does to its transaction, and what it must not: calls, XA, a reading transaction; KILL."""

from __future__ import annotations

import pytest

import txpool
from tests.integration.resources.mysql.branches import BranchDatabase, both, work
from tests.support.unseen import unseen
from txpool import failpoints
from txpool.xid import FORMAT_ID


@pytest.mark.parametrize("mode", ["cmr", "last-resource"])
def test_who_has_written_before_his_own_read_only_transaction_is_no_reader(managed: BranchDatabase, mode: str) -> None:
    """START TRANSACTION has committed what was before it; a reader's end changes no outcome, and is not told."""
    source, others = managed.datasource("one", mode=mode, name=mode), managed.datasource("two")
    if mode == "cmr":
        source.xids_table().create()  # type: ignore[attr-defined]
    with pytest.raises(txpool.HeuristicHazard), txpool.transaction():
        work(1, others, source)
        source.connect().cursor().execute(unseen("start transaction read only"))
        failpoints.arm("coordinator.prepared", "raise")
    assert both(managed) == [[1], []]


def test_a_session_that_was_killed_just_before_is_not_attempted_again(managed: BranchDatabase) -> None:
    source, tries = managed.datasource(), []

    @txpool.transactional(attempts=2)
    def insert() -> None:
        tries.append(1)
        source.connect().cursor().execute("insert into work values (%s, 0)", [len(tries)])

    with txpool.transaction():
        connection = source.connect()
        connection.cursor().execute("select 1")
        session = connection.enlistment.raw.session_number  # type: ignore[attr-defined]
    managed.server.end_sessions(session)
    with pytest.raises(txpool.OperationalError):
        insert()
    insert()
    assert (managed.rows(), len(tries)) == ([2], 2)


@pytest.mark.parametrize("mode", ["local", "cmr"])
@pytest.mark.parametrize("committing", [True, False], ids=["commit", "rollback"])
def test_a_procedure_may_have_committed_where_the_session_is_lost_behind_it(
    managed: BranchDatabase, mode: str, *, committing: bool
) -> None:
    managed.server.execute("create procedure p() begin commit; insert into work values (2, 2); end", database="one")
    source, other = managed.datasource("one", mode=mode, name=mode), managed.datasource("two")
    if mode == "cmr":
        source.xids_table().create()  # type: ignore[attr-defined]
    txpool.begin()
    cursor = source.connect().cursor()
    cursor.execute("insert into work values (1, 1)")
    if mode == "cmr":
        work(1, other)
    cursor.execute("call p()")
    managed.server.end_sessions(source.connect().enlistment.raw.session_number)  # type: ignore[attr-defined]
    with pytest.raises((txpool.HeuristicError, txpool.TransactionInDoubt)):
        (txpool.commit if committing else txpool.rollback)()
    assert both(managed) == [[1], []]


@pytest.mark.parametrize("ends", ["commit {} one phase", "rollback {}"])
@pytest.mark.parametrize("committing", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("beside", [True, False], ids=["beside another", "alone"])
def test_a_program_cannot_end_its_branch_and_begin_it_again(
    managed: BranchDatabase, ends: str, *, committing: bool, beside: bool
) -> None:
    """The second half would be prepared under the first one's name, and the outcome told be that of a part."""
    source, other = managed.datasource("one"), managed.datasource("two")
    txpool.begin()
    cursor = source.connect().cursor()
    cursor.execute("insert into work values (1, 1)")
    if beside:
        work(1, other)
    xid = source.connect().enlistment.branch.record.xid  # type: ignore[attr-defined]
    name = f"'{xid.gtrid}','{xid.bqual}',{FORMAT_ID}"
    for command in (f"end {name}", ends.format(name), f"start {name}"):
        with pytest.raises(txpool.ProgrammingError, match="Nothing was sent"):
            cursor.execute(f"xa {command}")
    cursor.execute("xa recover")
    cursor.execute("insert into work values (2, 2)")
    (txpool.commit if committing else txpool.rollback)()
    assert both(managed) == ([[1, 2], [1] if beside else []] if committing else [[], []])
    assert source.statistics().destroyed == 0


def test_a_program_commands_its_own_branches_outside_a_transaction(managed: BranchDatabase) -> None:
    with managed.datasource().connect() as connection:
        cursor = connection.cursor()
        for command in ("start 'a'", "end 'a'", "commit 'a' one phase"):
            cursor.execute(f"xa {command}")
