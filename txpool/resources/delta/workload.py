"""What the conformance kit appends, and reads: each key is a row of a table of the kit's own."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from txpool.resources.delta.table import delta

if TYPE_CHECKING:
    from txpool.resources.delta.work import DeltaWork


class KitRows:
    """Rows with the kit's keys."""

    def __init__(self, folder: str) -> None:
        import pyarrow as pa

        self._name = f"txpool_kit_{secrets.token_hex(4)}"
        self._table = Path(folder, self._name)
        self._schema = pa.schema([pa.field("key", pa.string())])
        with delta(self._name) as deltalake:
            deltalake.DeltaTable.create(str(self._table), self._schema)

    def write(self, work: DeltaWork, key: str) -> None:
        """Stage a row."""
        import pyarrow as pa

        work.state(self._name)
        work.append(self._name, [pa.record_batch([[key]], schema=self._schema)], self._schema)

    def visible(self, key: str) -> bool:
        """Whether the table has the row, once."""
        with delta(self._name) as deltalake:
            found = deltalake.DeltaTable(str(self._table)).to_pyarrow_table()["key"].to_pylist()
        return bool(found.count(key) == 1)

    def close(self) -> None:
        """Remove the table."""
        shutil.rmtree(self._table, ignore_errors=True)
