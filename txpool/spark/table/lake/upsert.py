"""An upsert into an Iceberg table: files with rows whose keys are among the new ones are written anew without these.

The driver does that, one file after the other: what it has in memory are the new rows' keys, and the rows of one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as iceberg
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
from pyiceberg.table import DataScan, FileScanTask

from txpool.errors import ProgrammingError
from txpool.spark.table.staging import key_error

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema

    from txpool.lake.changes import LakeChanges
    from txpool.spark.table.target import Target

#: The types of keys by whose least and greatest value files are left out that have none of them.
_RANGED = (iceberg.IntegerType, iceberg.LongType, iceberg.DateType)
_NO_KEYS = (iceberg.FloatType, iceberg.DoubleType)
_ROW = "row"


def require_keys(keys: Sequence[str], given: Sequence[str], schema: Schema, target: Target) -> None:
    """ProgrammingError if rows cannot be told by these keys, or if `given` lacks a column that a row would lose."""
    kinds = {field.name: field.field_type for field in schema.fields}
    for key in keys:
        kind = kinds.get(key)
        if kind is None:
            why = f"{target.name} has no column {key}: its columns are {', '.join(kinds)}"
        elif not kind.is_primitive or isinstance(kind, _NO_KEYS):
            why = f"column {key} is {kind}, whose values are not told apart for certain"
        else:
            continue
        raise ProgrammingError(f"keys of the upsert: {why}. Nothing was done.")
    if lacking := [name for name in kinds if name not in given]:
        raise ProgrammingError(
            f"an upsert into {target.name} replaces whole rows, and the DataFrame lacks {', '.join(lacking)}: add what "
            "it lacks. Nothing was done."
        )


class Replacement:
    """What takes the place of the files that have rows with the keys of new ones."""

    def __init__(self, gtrid: str, target: Target, keys: Sequence[str]) -> None:
        self._gtrid = gtrid
        self._target = target
        self._keys = tuple(keys)

    def __call__(
        self, changes: LakeChanges, files: Sequence[DataFile]
    ) -> Iterator[tuple[DataFile, Sequence[DataFile]]]:
        """Each such file of the table, and the files of its other rows. DataError if the new keys are not unique."""
        schema = changes.table_metadata.schema()
        for each in files:  # a pickled one has lost it
            each.spec_id = changes.table_metadata.default_spec_id
        new = self._keys_of(_read(changes, schema.select(*self._keys), *map(FileScanTask, files)))
        self._require_unique(new)
        for task in DataScan(changes.table_metadata, changes.files, self._range(new, schema)).plan_files():
            found = self._keys_of(_read(changes, schema.select(*self._keys), task))
            if _others(found, new).num_rows == found.num_rows:
                continue
            rows = _read(changes, schema, task)
            rest = rows.take(_others(self._keys_of(rows), new)[_ROW].sort())
            yield task.file, list(_dataframe_to_data_files(changes.table_metadata, rest, changes.files)) if rest else ()

    def _keys_of(self, rows: pa.Table) -> pa.Table:
        """The keys of these rows, under numbers as names: a column may have any name."""
        columns = [rows.column(key) for key in self._keys]
        plain = [
            each.cast(each.type.storage_type) if isinstance(each.type, pa.BaseExtensionType) else each
            for each in columns
        ]
        return pa.table({str(number): each for number, each in enumerate(plain)})

    def _require_unique(self, new: pa.Table) -> None:
        counted = new.group_by(new.column_names).aggregate([([], "count_all")])
        number = pc.field("count_all")
        without = [pc.field(name).is_null() for name in new.column_names]
        for found in counted.filter(reduce(or_, without, number > 1)).slice(0, 1).to_pylist():
            raise key_error(self._gtrid, self._target, self._keys, [*found.values()])

    def _range(self, new: pa.Table, schema: Schema) -> BooleanExpression:
        found: list[BooleanExpression] = [AlwaysTrue()]
        for number, key in enumerate(self._keys):
            if isinstance(schema.find_type(key), _RANGED):
                ends: Any = pc.min_max(new.column(number)).as_py()
                found += [
                    GreaterThanOrEqual(term=Reference(key), value=literal(ends["min"])),
                    LessThanOrEqual(term=Reference(key), value=literal(ends["max"])),
                ]
        return reduce(And, found)


def _read(changes: LakeChanges, columns: Schema, *tasks: FileScanTask) -> pa.Table:
    return ArrowScan(changes.table_metadata, changes.files, columns, AlwaysTrue()).to_table(tasks)


def _others(keys: pa.Table, new: pa.Table) -> pa.Table:
    """The numbers of the rows whose keys are not among the new ones."""
    numbered = keys.append_column(_ROW, pa.array(range(keys.num_rows), pa.int64()))
    return numbered.join(new.cast(keys.schema), keys=keys.column_names, join_type="left anti")
