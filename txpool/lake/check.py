"""What `txpool check` finds in a warehouse. It reads, but for the tables of the catalog, which it makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from txpool.findings.finding import Finding, failure, ok

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings


def findings(settings: DataSourceSettings) -> Iterator[Finding]:
    """The findings about a warehouse and its tables' maintenance."""
    from txpool.datasource.source import Source
    from txpool.lake.changes import DELETES, namespaces
    from txpool.lake.opening import catalog
    from txpool.tm.demarcation.block import transaction

    with transaction():
        lake = catalog(Source(settings))
        root = lake.properties["warehouse"]
        yield ok("warehouse", f"{root} is bound to the catalog {settings.name}")
        yield from lake.journals.findings()
        for namespace in namespaces(lake):
            for table in lake.list_tables(namespace):
                if lake.load_table(table).properties.get(DELETES, "false").lower() != "false":
                    yield failure(
                        "maintenance",
                        f"table {'.'.join(table)} has {DELETES}",
                        "metadata would be deleted before the transaction that replaces it has committed",
                        "remove that property, and expire snapshots by a job of its own",
                    )
