"""Which attempts of a Spark write may win, from names alone."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import pytest

from txpool.datasource import DataSource
from txpool.errors import OperationalError
from txpool.resources.base import BranchRecord
from txpool.spark.commit.attempts import Attempt, Candidates, PartitionResult, attempts_of, earlier_attempt, require_all
from txpool.spark.task.references import references_in
from txpool.xid import TaskName, make_xid

GTRID = "txp1:driver:abcdefghijkl:1"
PATH = "conf/by-global.properties"


def records(
    partition: int, attempt: int, *datasources: str, of: int | None = None, write: int = 0
) -> list[BranchRecord]:
    """An attempt's branches in these datasources, of `of` in all."""
    task = TaskName(write, partition, attempt, len(datasources) if of is None else of)
    return [
        BranchRecord(make_xid(GTRID, number, name, task=task), name, f"server of {name}", {"xid": "7"})
        for number, name in enumerate(datasources)
    ]


def listed(*of_attempts: list[BranchRecord]) -> dict[int, Attempt]:
    return attempts_of([record for some in of_attempts for record in some], gtrid=GTRID, write=0)


def result(partition: int, attempt: int, *datasources: str) -> PartitionResult:
    return PartitionResult(partition, attempt, tuple(records(partition, attempt, *datasources)), {})


def test_a_listing_is_sorted_by_attempt_and_others_are_left_out() -> None:
    plain = BranchRecord(make_xid(GTRID, 0, "one"), "one")
    foreign = BranchRecord(make_xid(GTRID[:-1] + "2", 0, "one", task=TaskName(0, 0, 9, 1)), "one")
    found = attempts_of(
        [plain, foreign, *records(0, 5, "one", "two"), *records(0, 5, "one", "two"), *records(0, 6, "one", write=1)],
        gtrid=GTRID,
        write=0,
    )
    assert found == {5: Attempt(0, 5, tuple(records(0, 5, "one", "two")))}


def test_an_attempt_is_complete_when_all_that_its_name_counts_is_there() -> None:
    found = listed(records(0, 1, "one", "two"), records(1, 2, "one", of=2))
    assert found[1].complete
    assert not found[2].complete


def test_an_attempt_with_a_branch_that_was_named_early_is_never_complete() -> None:
    """How many there will be was not known: so what is listed may be a part, as after a crash between two PREPAREs."""
    early = records(0, 1, "one", of=0)
    late = [record for record in records(0, 2, "one", "two") if record.datasource == "two"]
    mixed = [*late, *records(0, 2, "one", of=0)]
    found = listed(early, mixed)
    assert not any(attempt.complete or attempt.countable for attempt in found.values())
    assert earlier_attempt(found, 0) is None
    candidates = Candidates()
    assert candidates.reject(found, ended=()) == []
    # A database that has not answered makes no difference: they cannot be adopted in any case.
    assert {attempt.number for attempt in candidates.reject(found, ended=(1, 2), partial=True)} == {1, 2}


def test_only_a_complete_attempt_of_the_partition_is_adopted() -> None:
    found = listed(records(0, 1, "one", of=2), records(0, 3, "one"), records(0, 4, "one"), records(1, 2, "one"))
    assert earlier_attempt(found, 0) == found[3]
    assert earlier_attempt(found, 2) is None


@pytest.mark.parametrize(
    ("ended", "stuck", "partial", "struck"),
    [
        ((), (0, 1), False, set()),  # whatever Spark has not given up may still win
        ((1, 2), (), False, {2}),  # the complete one is there to be adopted
        ((1, 2), (), True, set()),  # a database did not answer: 2 may be complete
        ((1, 2), (0,), True, {1}),  # the retry of partition 0 did not adopt it
        ((1, 2), (0, 1), False, {1, 2}),
    ],
)
def test_what_is_struck(ended: tuple[int, ...], stuck: tuple[int, ...], partial: bool, struck: set[int]) -> None:
    found = listed(records(0, 1, "one", "two"), records(1, 2, "one", of=2), records(1, 3, "one"))
    candidates = Candidates()
    rolled_back = candidates.reject(found, ended=ended, stuck=stuck, partial=partial)
    assert {attempt.number for attempt in rolled_back} == candidates.rejected == struck


def test_where_nobody_adopts_all_that_spark_gave_up_is_struck_and_nothing_else() -> None:
    found = listed(records(0, 1, "one", "two"), records(0, 2, "one", "two"), records(1, 3, "one", of=2))
    candidates = Candidates(adoptable=False)
    assert candidates.reject(found, ended={1}, partial=True) == [found[1]]
    assert candidates.rejected == {1}


def test_what_a_struck_attempt_prepares_later_rolls_back_as_well() -> None:
    candidates = Candidates()
    candidates.reject(listed(records(0, 1, "one", of=2)), ended={1})
    late = listed(records(0, 1, "one", "two"))
    assert candidates.reject(late, ended=set()) == [late[1]]


def test_the_winners_are_what_the_results_name() -> None:
    results = [result(0, 1, "one", "two"), result(1, 2), result(2, 4, "one")]
    found = listed(records(0, 1, "one", "two"), records(2, 3, "one"), records(2, 4, "one"))
    chosen = Candidates().choose(GTRID, results, found)
    assert chosen == [*records(0, 1, "one", "two"), *records(2, 4, "one")]


def test_a_winner_that_was_struck_or_is_gone_wins_nothing() -> None:
    found = listed(records(0, 1, "one", "two"), records(1, 2, "one"))
    candidates = Candidates()
    candidates.rejected.add(2)
    with pytest.raises(OperationalError, match=r"attempt 2 of partition 1 .* Spark had given up that attempt"):
        candidates.choose(GTRID, [result(0, 1, "one", "two"), result(1, 2, "one")], found)
    gone = r"attempt 1 of partition 0 .* no longer prepared in two: recovery has ended it, if the log lost"
    with pytest.raises(OperationalError, match=gone):
        Candidates().choose(GTRID, [result(0, 1, "one", "two")], listed(records(0, 1, "one", of=2)))
    with pytest.raises(OperationalError, match=r"1 results for 2 partitions \(none for \[0\]\)"):
        require_all(GTRID, [result(1, 2, "one")], 2)


def test_a_result_travels_as_plain_data() -> None:
    sent = PartitionResult(3, 1, tuple(records(3, 1, "one", "two")), {"one": {"name": "one"}}, (5, 80))
    packed = sent.pack()
    assert {type(value) for value in packed.values()} == {int, str, dict, list}
    assert PartitionResult.unpack(GTRID, json.loads(json.dumps(packed))) == sent


def test_what_a_function_mentions() -> None:
    source = DataSource("held", driver="sqlite3", mode="cmr", url="sqlite:///held.db")
    closed_over = ["conf/by-closure.properties", source]

    def helper(rows: object, name: str = "conf/by-default.properties") -> object:
        return rows, name, closed_over, PATH

    class Writer:
        def __init__(self) -> None:
            self.name = {"name": "conf/by-attribute.properties"}

        def __call__(self, rows: object) -> object:
            return helper(rows), "conf/by-constant.properties"

        def method(self, rows: object) -> object:
            return self(rows)

    paths = {f"conf/by-{how}.properties" for how in ("closure", "default", "global", "constant", "attribute")}
    for function in (Writer(), Writer().method, functools.partial(Writer())):
        assert {*paths, source} <= set(references_in(function))
    keyword = "conf/by-keyword.properties"
    assert {PATH, keyword} <= set(references_in(functools.partial(helper, name=keyword)))


def test_without_spark_the_error_names_the_extra() -> None:
    hidden = "import sys; sys.modules['pyspark'] = None; import txpool.spark"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError: txpool.spark needs Spark" in done.stderr
    assert "pip install 'txpool[spark]'" in done.stderr
