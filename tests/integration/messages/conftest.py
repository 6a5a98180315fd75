"""A queue in each kind of database, and a second database for what its consumer writes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import txpool
from tests.integration.outbox.conftest import Place, place
from txpool.messages import MessageSession
from txpool.resources.messages.tables import tables_of

__all__ = ["place"]


@pytest.fixture
def queue(place: Place, tmp_path: Path) -> Iterator[Callable[..., MessageSession]]:
    """Makes a session of a queue in `orders`, with further keys."""
    tables_of(place.orders).ensure(place.orders)
    file = tmp_path / "orders.properties"
    txpool.register(place.orders)
    file.write_text("")  # never read: the datasource is known by its path
    from txpool.datasource.registry import by_key

    by_key[str(file)] = place.orders
    numbers = itertools.count()

    def make(**options: object) -> MessageSession:
        number = next(numbers)
        path = tmp_path / f"queue{number}.properties"
        lines = {"driver": "sql-queue", "queue": "orders", "queue.datasource": file.name, **options}
        path.write_text("".join(f"{key.replace('_', '.')} = {value}\n" for key, value in lines.items()))
        place.opened.append(txpool.session(path).source)  # type: ignore[arg-type]
        return txpool.session(path)

    yield make
    by_key.pop(str(file), None)
