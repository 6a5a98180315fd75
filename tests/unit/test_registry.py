"""The registry of datasources: to close one takes as many steps as it has keys, however many others there are."""

from __future__ import annotations

from types import FrameType
from typing import Any

import pytest

from tests.support.interrupts import at_each_check, codes_of
from txpool.datasource import registry


class _Counting(dict[str, Any]):
    """How many of its items were read one after the other."""

    walked = 0

    def items(self) -> Any:
        self.walked += len(self)
        return super().items()


class _Source:
    def __init__(self, name: str) -> None:
        self.name = name

    def close(self) -> None:
        registry.unregister(self)  # type: ignore[arg-type]


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> tuple[_Counting, _Counting]:
    found = _Counting(), _Counting()
    monkeypatch.setattr(registry, "registered", found[0])
    monkeypatch.setattr(registry, "by_key", found[1])
    return found


def test_to_close_one_walks_through_no_others(empty: tuple[_Counting, _Counting]) -> None:
    sources: list[Any] = [_Source(f"ds-{number}") for number in range(50)]
    for source in sources:
        registry.add(source)
        registry.shared(f"/{source.name}.properties", lambda source=source: source)
    registry.install_received({"another name": sources[0], "/there.properties": sources[0]}, "/")
    for source in sources:
        source.close()
    assert empty == ({}, {})
    assert [each.walked for each in empty] == [0, 0]


def test_the_name_and_the_keys_of_another_stay(empty: tuple[_Counting, _Counting]) -> None:
    first, second = _Source("one"), _Source("one")
    registry.add(first)  # type: ignore[arg-type]
    registry.install_received({"/one.properties": first}, "/")  # type: ignore[dict-item]
    registry.install_received({"/one.properties": second}, "/")  # type: ignore[dict-item]
    second.close()
    assert empty == ({"one": first}, {})
    first.close()
    assert empty == ({}, {})


def test_one_whose_close_was_interrupted_anywhere_is_found_no_more_once_it_is_closed_again(
    empty: tuple[_Counting, _Counting],
) -> None:
    def closed(struck: int | None) -> int:
        """How many places a close passes that is interrupted at one of them, and then called again."""
        source: Any = _Source("one")
        registry.add(source)
        registry.install_received({"/one.properties": source}, "/")
        passed = 0

        def strike(_: FrameType) -> None:
            nonlocal passed
            passed += 1
            if passed - 1 == struck:
                raise KeyboardInterrupt

        try:
            with at_each_check(codes_of(registry), strike):
                source.close()
        except KeyboardInterrupt:
            source.close()
        assert empty == ({}, {}), struck
        return passed

    places = closed(None)
    assert places > 3
    for place in range(places):
        closed(place)
