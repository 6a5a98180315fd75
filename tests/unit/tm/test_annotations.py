"""A note is a line of text, kept in the decision where no process that reads it is misled."""

from __future__ import annotations

from typing import Any

import pytest

import txpool
from txpool.errors import ProgrammingError
from txpool.log.base import SideRecord
from txpool.log.memory import MemoryDisk, MemoryLog
from txpool.resources.base import BranchOutcome, BranchRecord, decode, encode
from txpool.tm.commit.annotations import annotations_in, with_annotations
from txpool.tm.commit.coordinator import Coordinator
from txpool.tm.commit.request import CommitRequest, Outcome
from txpool.xid import make_gtrid, make_xid

GTRID = make_gtrid("etl-1", "abcdefghijkl", 1)
PLACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def record(number: int, **evidence: Any) -> BranchRecord:
    return BranchRecord(make_xid(GTRID, number, "one"), "one", "server/1", evidence)


@pytest.mark.parametrize("note", [7, None, b"bytes", "x" * 201, "two\nlines", "a\x1b[31mcolour", "\0", "\ud800"])
def test_what_is_no_line_of_text_is_refused_before_anything_is_begun(note: Any) -> None:
    with pytest.raises(ProgrammingError, match="Nothing was begun"):
        txpool.transaction(note=note)
    with pytest.raises(ProgrammingError, match="Nothing was begun"):
        txpool.transactional(note=note)
    with txpool.transaction() as tx, pytest.raises(ProgrammingError, match="Nothing was begun or changed"):
        tx.note = note
    assert tx.status is txpool.Status.COMMITTED


def test_the_first_note_stays() -> None:
    with txpool.transaction(note="x" * 200) as tx, txpool.transaction(note="inner"):
        assert tx.note == "x" * 200
    with txpool.transaction() as tx:
        with txpool.transaction(note="Größe ✓"):
            pass
        assert tx.note == "Größe ✓"
        tx.note = "known only now"
        assert tx.note == "known only now"


def test_a_decorated_function_has_one() -> None:
    @txpool.transactional(note="nightly")
    def noted() -> str:
        tx = txpool.current()
        assert tx is not None
        return tx.note

    assert noted() == "nightly"


def test_remarks_go_with_a_branch_that_has_evidence_and_come_back() -> None:
    annotations = {"note": 'Größe "42" ✓', "traceparent": PLACE}
    records = [record(0), record(1, xid="7", timeline="1"), record(2, xid="8")]
    kept = decode(GTRID, encode(with_annotations(records, annotations)))
    assert annotations_in(kept) == annotations
    # What any version goes by is as it was.
    assert [(r.xid, r.datasource, r.identity) for r in kept] == [(r.xid, r.datasource, r.identity) for r in records]
    assert [r.evidence.get("xid") for r in kept] == [None, "7", "8"]
    assert [bool(r.evidence) for r in kept] == [False, True, True]
    assert records[1].evidence == {"xid": "7", "timeline": "1"}


def test_a_decision_without_evidence_is_not_given_any() -> None:
    kept = with_annotations([record(0), record(1)], {"note": "n"})
    assert kept == [record(0), record(1)]
    assert annotations_in(kept) == {"note": "", "traceparent": ""}


@pytest.mark.parametrize(
    ("evidence", "note"),
    [
        ({"note": "a\x1b[2Jb\n"}, "a?[2Jb?"),
        ({"note": "y" * 5000}, "y" * 200),
        ({"note": 7, "traceparent": ["00"]}, "7"),
        ({"note": "n", "traceparent": f"{PLACE}\r\nX-Header: 1"}, "n"),
        (["note"], ""),
    ],
)
def test_whoever_may_write_a_decision_may_have_written_anything(evidence: Any, note: str) -> None:
    found = BranchRecord(make_xid(GTRID, 0, "one"), "one", "", evidence)
    assert annotations_in([found]) == {"note": note, "traceparent": ""}


class RolledBackByHand:
    """A branch that was prepared, and that a person has ended since."""

    idle = False

    def __init__(self, found: BranchRecord) -> None:
        self.record, self.datasource = found, found.datasource

    def start_commit(self) -> None: ...

    def await_commit(self) -> BranchOutcome:
        return BranchOutcome.ROLLED_BACK


class Keeping(MemoryLog):
    """It tells what it was given to keep, each time."""

    def __init__(self, disk: MemoryDisk, node: str) -> None:
        super().__init__(disk, node=node)
        self.kept: list[tuple[str, str]] = []

    def put_record(self, *records: SideRecord) -> None:
        self.kept += [(record.kind, record.name) for record in records]
        super().put_record(*records)


@pytest.mark.parametrize("note", ["invoice 42", ""])
def test_beside_a_heuristic_outcome_note_and_ends_are_kept_once_however_many_branches_differ(note: str) -> None:
    log = Keeping(MemoryDisk("etl-1"), node="etl-1")
    gtrid = make_gtrid("etl-1", log.incarnation, 1)
    branches: list[Any] = [
        RolledBackByHand(BranchRecord(make_xid(gtrid, number, name), name, "", {"xid": "7"}))
        for number, name in enumerate(("one", "two"))
    ]
    unit = CommitRequest(gtrid, adopted=branches, annotations={"note": note} if note else None)
    result = Coordinator(unit, log).commit()
    assert result.outcome is Outcome.HEURISTIC_ROLLBACK
    assert [each.datasource for each in log.heuristics()] == ["one", "two"]
    assert log.kept == [("note", gtrid)] * bool(note) + [("ends", gtrid)]
    assert [record.text for record in log.side_records("note")] == [note] * bool(note)
    assert [record.recorded_at > 0 for record in log.side_records("note")] == [True] * bool(note)
