"""catalog(): the catalog of a warehouse within the ambient transaction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from txpool.datasource.lookup import find_source
from txpool.datasource.source import Source
from txpool.errors import ConfigurationError, NotSupportedError, ProgrammingError, described
from txpool.resource_managers import ICEBERG
from txpool.tm.ambient import current

if TYPE_CHECKING:
    from txpool.lake.tables import LakeCatalog


def catalog(target: str | Path | Source) -> LakeCatalog:
    """pyiceberg's catalog of the warehouse that a file describes, or its registered name, within the transaction.

    It is the same object each time within one transaction, and refuses work when that has ended. Its tables read what
    the transaction has changed; others see the changes once it has committed. `append`, `overwrite` and `upsert` take
    what pyarrow, pandas or Polars have made. If a change fails in part, the transaction rolls back. One that conflicts
    with another transaction's fails at the end, as a serialization failure, which `attempts` tries again.

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
