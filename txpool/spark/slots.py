"""Prepared-transaction slots: every partition's branch keeps one in its database until the transaction is decided."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from contextvars import Context

from txpool.datasource import DataSource
from txpool.errors import OperationalError

#: PostgreSQL's SQLSTATE where PREPARE TRANSACTION finds no free slot.
_NO_SLOT = "53200"
_QUERY = "select current_setting('max_prepared_transactions')::int, (select count(*) from pg_prepared_xacts)"
_REMEDY = (
    "Write fewer partitions (df.coalesce(n)), or raise max_prepared_transactions in postgresql.conf and restart the "
    "server"
)


def require_slots(datasources: Iterable[DataSource], partitions: int, gtrid: str) -> None:
    """OperationalError where a datasource has fewer free slots than there are partitions."""
    for datasource in datasources:
        maximum, taken = Context().run(_slots, datasource)
        if maximum - taken < partitions:
            raise OperationalError(
                f"{gtrid}: {partitions} partitions need {partitions} prepared transactions in {datasource.name} at the "
                f"same time, and {maximum - taken} are free (max_prepared_transactions is {maximum}, {taken} are "
                f"taken). {_REMEDY}. The job was not started, nothing of it stays."
            )


def _slots(datasource: DataSource) -> tuple[int, int]:
    """The server's slots and how many are taken; called outside of any transaction."""
    with closing(datasource.connect()) as connection:
        maximum, taken = connection.cursor().execute(_QUERY).fetchone()
    return maximum, taken


def explain_slots(error: Exception, partitions: int) -> None:
    """Add to a PREPARE's error what to do about it, where the slots have run out."""
    if getattr(error, "sqlstate", None) == _NO_SLOT:
        error.add_note(
            f"All slots for prepared transactions are taken, and this write needs one for each of its {partitions} "
            f"partitions. {_REMEDY}."
        )
