"""Work that has a name, and who else may have it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from tests.integration.tm.demarcation.table import OneDatasource
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases

#: Of PostgreSQL and of SQLite.
TABLES = {"psycopg": "txpool_spark.writes", "sqlite3": "txpool_spark_writes"}
ID = "invoice-42"


def insert(world: OneDatasource, number: int) -> None:
    world.insert(world.datasource.connect(), number)


def run(world: OneDatasource, number: int, name: str = ID, **options: Any) -> str:
    """One run of the work; the transaction's name."""
    with transaction(transaction_id=name, record_in=world.datasource, **options) as tx:
        insert(world, number)
    return tx.gtrid


def records(world: OneDatasource) -> list[tuple[Any, ...]]:
    with closing(world.bare()) as raw:
        return raw.execute(  # type: ignore[no-any-return]
            f"select transaction_id, target, gtrid, mode, plan from {TABLES[world.options['driver']]} order by gtrid"
        ).fetchall()


def hold(other: Any, name: str = ID) -> None:
    """As another run that goes on."""
    other.execute("begin")
    other.execute(
        "insert into txpool_spark.writes (transaction_id, target, gtrid, mode, plan) "
        f"values ('{name}', 'transaction', 'txp1:x', 'block', '-')"
    )


def waits(databases: Databases) -> bool:
    return bool(databases.rows("one", "select 1 from pg_stat_activity where wait_event_type = 'Lock'"))
