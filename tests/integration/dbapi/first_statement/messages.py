"""What tests of a transaction's first statement look at: the messages on the wire, and the round trips."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from txpool.errors import TransactionRolledBack
from txpool.tm.demarcation.block import transaction

INSERT = "insert into t values (%s, %s)"
IDLE = psycopg.pq.TransactionStatus.IDLE
INTRANS = psycopg.pq.TransactionStatus.INTRANS

First = Callable[[Any], Any]


@contextmanager
def traced(connection: Any, path: Path) -> Iterator[list[str]]:
    """The names of the messages, as libpq has sent and received them within the block."""
    pgconn = connection.current_enlistment().raw.pgconn
    names: list[str] = []
    with path.open("w") as file:
        pgconn.trace(file.fileno())
        try:
            yield names
        finally:
            pgconn.untrace()
    for line in path.read_text().splitlines():
        _, sender, _, name, *rest = [*line.split("\t"), ""]
        names.append(f"{sender} {name} {rest[0]}".strip())


@contextmanager
def rolled_back() -> Iterator[None]:
    """A transaction that rolls back in any case."""
    with suppress(TransactionRolledBack), transaction() as tx:
        yield
        tx.set_rollback_only()


def round_trips(names: list[str]) -> int:
    """How often the server was waited for."""
    return sum(name.startswith("B ReadyForQuery") for name in names)
