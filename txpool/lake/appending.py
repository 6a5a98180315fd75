"""write_table(): a frame of pyarrow, pandas or Polars is appended to a Delta table when the transaction commits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from txpool.datasource.lookup import find_source
from txpool.datasource.source import Source
from txpool.errors import ConfigurationError, DataError, NotSupportedError, described
from txpool.files.folder import enlisting
from txpool.resource_managers import DELTA, ICEBERG

if TYPE_CHECKING:
    import pyarrow as pa

    from txpool.resources.delta.work import DeltaWork


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
