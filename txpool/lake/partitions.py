"""Keeps each row in one partition of a table.

pyiceberg divides what it writes by comparing values, for which 0.0 and -0.0 are the same, and NaN is not itself. So
rows are doubled or lost without an error, also when a delete or an upsert rewrites files of an earlier partitioning.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.io import pyarrow as io
from pyiceberg.io.pyarrow import _determine_partitions

from txpool.errors import DataError


def keep_rows() -> None:
    """Correct pyiceberg's partitioning, for this process."""
    vars(io)[_determine_partitions.__name__] = _whole


def _whole(spec: Any, schema: Any, arrow_table: Any) -> Any:
    made = list(_determine_partitions(spec, schema, arrow_table))
    if sum(each.arrow_table_partition.num_rows for each in made) != arrow_table.num_rows:
        fields = ", ".join(str(schema.find_column_name(each.source_id)) for each in spec.fields)
        raise DataError(
            f"the table is partitioned by {fields}, where rows have NaN or -0.0: they would be lost or doubled, and "
            "nothing was written. Overwrite these values first, or partition by another column"
        )
    return made
