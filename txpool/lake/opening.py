"""What a transaction's code calls: catalog() of a warehouse of Iceberg tables, and write_table() into Delta tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from txpool.datasource.lookup import find_source
from txpool.datasource.source import Source
from txpool.errors import ConfigurationError, DataError, NotSupportedError, ProgrammingError, described
from txpool.files.folder import enlisting
from txpool.resource_managers import DELTA, ICEBERG
from txpool.tm.ambient import current
from txpool.tm.rules.enlistment import require_log
from txpool.tm.subordinate import Subordinate

if TYPE_CHECKING:
    import pyarrow as pa

    from txpool.lake.rest.catalog import RestLakeCatalog
    from txpool.lake.tables import LakeCatalog
    from txpool.resources.delta.work import DeltaWork
    from txpool.tm.transaction import Transaction


def _joined(source: Source, transaction: Transaction) -> RestLakeCatalog:
    """The catalog of a REST server, which takes part in the transaction."""
    if isinstance(transaction, Subordinate):
        raise ProgrammingError(
            f"{source.name} cannot join {transaction.gtrid} in a Spark task: write_table() writes it from tasks"
        )
    require_log(transaction.gtrid, source.name, logged=transaction.log is not None)
    made: RestLakeCatalog = transaction.enlist_datasource(source).pooled.catalog
    return made


def catalog(target: str | Path | Source) -> LakeCatalog | RestLakeCatalog:
    """pyiceberg's catalog of the warehouse that a file describes, or its registered name, within the transaction.

    It is the same object each time within one transaction, and refuses work when that has ended. Its tables read what
    the transaction has changed; others see the changes once it has committed. `append`, `overwrite` and `upsert` take
    what pyarrow, pandas or Polars have made. If a change fails in part, the transaction rolls back. One that conflicts
    with another transaction's fails at the end, as a serialization failure, which `attempts` tries again. Tables of a
    REST server's catalog take appends alone: NotSupportedError for what else would change them.

    Errors: ProgrammingError outside a transaction; ConfigurationError for a file that describes no lake, a warehouse
    of another catalog, or if pyiceberg is not installed; OperationalError for tables or a folder that others own.
    """
    source = find_source(target)
    if source.driver != ICEBERG:
        raise NotSupportedError(
            f"datasource {source.name} has no Iceberg tables: name a file with driver = {ICEBERG}. Nothing was done"
        )
    transaction = current()
    if transaction is None:
        raise ProgrammingError(
            f"catalog {source.name} outside a transaction, and nothing was done: its tables change when a transaction "
            "commits. Write `with txpool.transaction():` around it"
        )
    transaction.require_active()
    if source.settings.catalog_type:
        return _joined(source, transaction)
    try:
        from txpool.lake.tables import LakeCatalog
    except ImportError as error:
        raise ConfigurationError(
            f"datasource {source.name}: driver = {ICEBERG} needs pyiceberg and pyarrow: pip install 'txpool[lake]' "
            f"({described(error)})"
        ) from error
    found = transaction.values.get(source)
    if found is None:
        found = transaction.values[source] = LakeCatalog(source, transaction)
    made: LakeCatalog = found
    return made


def require_append(source: Source, mode: str) -> None:
    """NotSupportedError for any other mode than append."""
    if mode != "append":
        raise NotSupportedError(
            f"{source.name}: write_table() does not {mode} Delta tables, and nothing was done. Between prepare and "
            "commit others may change the table: only rows that are appended are right whatever they have done. Write "
            "mode='append', or keep the table in an Iceberg catalog"
        )


def write_table(frame: Any, datasource: str | Path | Source, table: str, mode: str = "append") -> int:
    """Append a table of pyarrow, or a DataFrame of pandas or Polars, to a Delta table; the number of rows.

    The rows are there when the ambient transaction commits. `datasource` is a file with driver = delta, or its
    registered name; `table` is the name of a folder below its folder. Columns are matched by name; a value that the
    table's type would change is refused. Errors: ConfigurationError; ProgrammingError outside a transaction, or
    without a decision log; NotSupportedError for another mode, or a table that needs more than rows;
    OperationalError if there is no such table; DataError.
    """
    source = find_source(datasource)
    if source.driver != DELTA:
        instead = "txpool.lake.catalog()" if source.driver == ICEBERG else "a file with driver = delta"
        raise NotSupportedError(
            f"datasource {source.name} has no Delta tables, and nothing was done: write by {instead}"
        )
    require_append(source, mode)
    ambient = enlisting(source, "write_table()", "rows appear", "write_table() of txpool.spark")
    work: DeltaWork = ambient.enlist_datasource(source).pooled
    try:
        return _append(work, frame, table)
    except BaseException as error:
        if not isinstance(error, Exception):  # rows may be staged, and nobody knows of it
            ambient.set_rollback_only(error)
        raise


def _append(work: DeltaWork, frame: Any, table: str) -> int:
    where = work.where(table)
    try:
        from txpool.lake.values import arrow_of, exactly
    except ImportError as error:
        raise ConfigurationError(
            f"{where}: driver = delta needs deltalake and pyarrow: pip install 'txpool[delta]' ({described(error)})"
        ) from error
    schema: pa.Schema = work.state(table).arrow(where)
    given = arrow_of(frame, schema, where)
    try:
        rows = exactly(given, schema, where)
    except (ValueError, TypeError, NotImplementedError) as error:  # also Arrow's
        raise DataError(f"{where}: {described(error)}, and nothing was written") from error
    return work.append(table, rows.to_batches(), schema) if rows.num_rows else 0
