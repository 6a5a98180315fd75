"""What the conformance kit writes, and reads: each key is a row of a table of its own."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from txpool.errors import OperationalError
from txpool.lake.rest.references import References

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.lake.rest.work import ReferencesWork


class KitTable:
    """A table, which a client of its own makes before the first row, and drops."""

    def __init__(self, settings: DataSourceSettings) -> None:
        self._place = References(settings)
        self._client = self._place.client
        self._namespace = f"txpool_conformance_{secrets.token_hex(4)}"
        self._table = f"{self._namespace}.rows"
        self._client.create_namespace(self._namespace)
        self._client.create_table(self._table, pa.schema([("key", pa.string())]))

    def write(self, work: ReferencesWork, key: str) -> None:
        """Append a row."""
        work.require_active()
        work.catalog.load_table(self._table).append(pa.table({"key": [key]}))

    def visible(self, key: str) -> bool:
        """Whether main has the row."""
        return key in self._client.load_table(self._table).scan().to_arrow()["key"].to_pylist()

    def close(self) -> None:
        """Drop the table, once nothing is noted of it: else recovery would list that for ever."""
        journals = self._place.journals
        for gtrid in {*journals.gtrids()}:
            if any(note.get("reference", [[""]])[0][0] == self._namespace for note in journals.notes(gtrid)):
                with suppress(OperationalError):  # something is prepared
                    self._place.sweep(gtrid)
        self._client.drop_table(self._table)
        self._client.drop_namespace(self._namespace)
