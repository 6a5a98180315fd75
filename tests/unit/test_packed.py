"""Very many things are packed: the same as a sorted list and a dict of them, whatever is asked."""

from __future__ import annotations

import random
from operator import itemgetter
from typing import Any

import pytest

from tests.crash.evidence import SEED
from txpool import packed
from txpool.packed import MappingPacker, Packed, PackedMapping, Packer, between

key = itemgetter(0)


@pytest.fixture(params=[1, 7, 300])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(packed, "FEW", request.param)
    monkeypatch.setattr(packed, "BLOCK", 8)
    found: int = request.param
    return found


def some(count: int, *, distinct: bool = False) -> list[tuple[str, Any]]:
    dice = random.Random(f"{SEED} {count}")
    numbers = dice.sample(range(10 * count), count) if distinct else [dice.randrange(count) for _ in range(count)]
    return [(f"{number:04}", (place, None, 0.5)) for place, number in enumerate(numbers)]


def packed_of(things: list[tuple[str, Any]]) -> tuple[Any, ...] | Packed[Any]:
    packer = Packer[Any](tuple, tuple)
    packer.extend(things)
    assert len(packer) == len(things)
    return packer.packed()


@pytest.mark.parametrize("count", [0, 1, 400])
@pytest.mark.parametrize("order", [1, -1, 0])
def test_it_is_the_sorted_sequence(few: int, count: int, order: int) -> None:
    things = some(count)
    if order:
        things.sort(key=key, reverse=order < 0)
    found = packed_of(things)
    expected = things if count <= few else sorted(things, key=key)
    assert isinstance(found, Packed) is (count > few)
    assert list(found) == expected
    assert len(found) == count
    assert found == tuple(expected)
    assert found != (*expected, "another")
    dice = random.Random(f"{SEED} slices")
    for _ in range(20):
        first, last = (dice.randrange(-count - 2, count + 2) for _ in range(2))
        assert [*found[first:last]] == expected[first:last]
        assert [*found[first : last : dice.choice([2, -1])]] in (expected[first:last:2], expected[first:last:-1])
        if -count <= first < count:
            assert found[first] == expected[first]
        else:
            with pytest.raises(IndexError):
                found[first]


def test_a_part_is_all_between_two_keys(few: int) -> None:
    things = some(400)
    found = packed_of(things)
    dice = random.Random(f"{SEED} parts")
    for _ in range(30):
        after, last = (dice.choice([None, f"{dice.randrange(-1, 402):04}"]) for _ in range(2))
        inside = [each for each in things if (after is None or each[0] > after) and (last is None or each[0] <= last)]
        assert [*between(found, after, last, key)] == sorted(inside, key=key)


def test_the_mapping_is_a_dict(few: int) -> None:
    things = some(400, distinct=True)
    packer = MappingPacker[Any](lambda value: value, lambda plain: plain[1:])
    for name, value in things:
        packer.add(name, value)
    found, expected = packer.packed(), dict(things)
    assert isinstance(found, PackedMapping)
    assert found == expected
    assert [*found] == sorted(expected)
    assert [*found.values()] == [expected[name] for name in sorted(expected)]
    assert len(found) == 400
    dice = random.Random(f"{SEED} names")
    for name in (f"{dice.randrange(4002):04}" for _ in range(300)):
        assert (name in found) is (name in expected)
        assert found.get(name) == expected.get(name)
    assert "" not in found
    assert "~" not in found
    assert 3 not in found


def test_few_stay_as_they_are() -> None:
    things = some(10)[::-1]
    assert packed_of(things) == tuple(things)
    packer = MappingPacker[int](lambda value: (value,), itemgetter(1))
    packer.add("b", 1)
    packer.add("a", 2)
    assert [*packer.packed().items()] == [("b", 1), ("a", 2)]
