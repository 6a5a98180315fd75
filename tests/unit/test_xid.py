"""Names of branches: what is written is what is read, and what is not exactly our format is not ours."""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txpool.xid import (
    MAX_PART,
    TaskName,
    Xid,
    is_reserved,
    make_gtrid,
    make_xid,
    new_incarnation,
    parse,
    split_gtrid,
    tag_of,
)

NAMES = st.text(st.sampled_from("abcXYZ019_.-"), min_size=1, max_size=28)
NUMBERS = st.integers(0, 36**8)


@given(NAMES, NUMBERS, st.integers(0, 9999), NAMES, st.none() | NAMES)
def test_a_name_says_all_that_recovery_needs(
    node: str, number: int, branch: int, datasource: str, decider: str | None
) -> None:
    incarnation = new_incarnation()
    xid = make_xid(make_gtrid(node, incarnation, number), branch, datasource, decider=decider)
    read = parse(xid.joined)
    assert read == xid
    assert (read.node, read.incarnation, read.tag) == (node, incarnation, tag_of(datasource))
    assert read.decider == (tag_of(decider) if decider else None)
    assert read.task is None


@given(NAMES, NUMBERS, st.tuples(*[st.integers(0, 99_999)] * 2), st.integers(0, 2**31), st.integers(1, 9))
def test_a_task_is_read_from_the_name_of_its_branch(
    node: str, number: int, place: tuple[int, int], attempt: int, branches: int
) -> None:
    task = TaskName(*place, attempt, branches)
    xid = make_xid(make_gtrid(node, new_incarnation(), number), 0, "orders", task=task)
    read = parse(xid.joined)
    assert read is not None
    assert read.task == task


@given(NAMES, NUMBERS, NAMES, st.none() | NAMES)
def test_names_fit_every_database(node: str, number: int, datasource: str, decider: str | None) -> None:
    task = TaskName(999, 99_999, 2**31, 99)
    xid = make_xid(make_gtrid(node, new_incarnation(), number), 9999, datasource, decider=decider)
    busy = make_xid(make_gtrid(node, new_incarnation(), number), 9999, datasource, task=task)
    for name in (xid, busy):
        assert max(len(name.gtrid), len(name.bqual)) <= MAX_PART
        assert len(name.joined) < 200
        assert set(name.joined) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-")


@pytest.mark.parametrize(
    "foreign",
    [
        "",
        "txp1",
        "txp1:node:abcdefghijkl:1",
        "txp2:node:abcdefghijkl:1:0:orders:L",
        "txp1:node:ABCDEFGHIJKL:1:0:orders:L",
        "txp1:node:abcdefghijk:1:0:orders:L",
        "txp1:no de:abcdefghijkl:1:0:orders:L",
        "txp1:node:abcdefghijkl:1:0:orders:X",
        "txp1:node:abcdefghijkl:1:0:orders:L ",
        "txp1:node:abcdefghijkl:1:0:orders:L\n",
        "txp1:node:abcdefghijkl:1:0:orders:L:1.2.3",
        "txp1:node:abcdefghijkl:1:0::L",
        "4660_Z3RyaWQ=_YnF1YWw=",
        "131077_AAAAAAAAAAAAAP//_NDg=",
    ],
)
def test_what_is_not_ours_to_the_letter_is_not_ours(foreign: str) -> None:
    assert parse(foreign) is None


def test_a_long_name_keeps_its_beginning_and_stays_distinct() -> None:
    long, other = "customers-of-the-north", "customers-of-the-south"
    assert tag_of(long) != tag_of(other)
    assert tag_of(long).startswith("customers")
    assert tag_of("orders") == "orders"


def test_an_incarnation_is_random() -> None:
    assert len({new_incarnation() for _ in range(1000)}) == 1000


def test_asking_a_foreign_name_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a bqual of txpool"):
        _ = Xid("txp1:node:abcdefghijkl:1", "nonsense").tag
    with pytest.raises(ValueError, match="not a gtrid of txpool"):
        split_gtrid("nonsense")


class Printed(str):
    """A text that prints another, as an Enum of texts does, while a driver sends what it is equal to."""

    __slots__ = ()

    def __str__(self) -> str:
        return "Printed"


def test_names_that_are_reserved() -> None:
    ours = make_xid(make_gtrid("etl-1", new_incarnation(), 1), 0, "orders").joined
    for name in (ours, "txp2:of a later version", (1, "txp1:a", "b"), psycopg.Xid(None, ours, None)):
        assert is_reserved(name)
    for name in (Printed(ours), psycopg.Xid(None, Printed(ours), None)):
        assert is_reserved(name)
    assert not is_reserved(Printed("mine"))
    for name in ("", "txp", "txp:1", "txp1", "mine", "my txp1:", (1, "gtrid", "txp1:"), psycopg.Xid(1, "a", "b")):
        assert not is_reserved(name)
