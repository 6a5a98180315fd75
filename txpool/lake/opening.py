"""catalog(): the catalog of a warehouse within the ambient transaction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from txpool.datasource.lookup import find_source
from txpool.datasource.source import Source
from txpool.errors import ConfigurationError, NotSupportedError, ProgrammingError, described
from txpool.resource_managers import ICEBERG
from txpool.tm.ambient import current
from txpool.tm.rules.enlistment import WRITE_A_LOG
from txpool.tm.subordinate import Subordinate

if TYPE_CHECKING:
    from txpool.lake.rest.catalog import RestLakeCatalog
    from txpool.lake.tables import LakeCatalog
    from txpool.tm.transaction import Transaction


def _joined(source: Source, transaction: Transaction) -> RestLakeCatalog:
    """The catalog of a REST server, which takes part in the transaction."""
    if isinstance(transaction, Subordinate):
        raise ProgrammingError(
            f"{source.name} cannot join {transaction.gtrid} in a Spark task: write_table() writes it from tasks"
        )
    if transaction.log is None:
        raise ProgrammingError(
            f"{source.name} cannot join {transaction.gtrid}: what is prepared there needs a decision log, by which "
            f"recovery ends it after a crash. {WRITE_A_LOG}"
        )
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
