"""The registry of datasources: to close one takes as many steps as it has keys, however many others there are."""

from __future__ import annotations

from typing import Any

import pytest

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
