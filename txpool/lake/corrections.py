"""Corrects pyiceberg, for this process: what it writes, reads and deletes is what was meant.

pyiceberg brings each batch that it writes or reads into the table's schema. If a list's elements or a map's values are
structs, it builds the array anew by its offsets, and a null becomes an empty one without an error.

It divides what it writes by comparing values, for which 0.0 and -0.0 are the same, and NaN is not itself. So rows are
doubled or lost without an error, also when a delete or an upsert rewrites files of an earlier partitioning.

It cuts numbers to one below the least of their type, and years to what its dates do not reach. So a partition of the
least numbers is among the greatest or null, where no filter looks, and an upsert doubles its rows.

It reads a partition's double as a float, and its UUID as what it does not compare with. So a filter misses rows, an
upsert doubles them, and a manifest that is written again has another value, which engines take for the column's.

It counts no NaN, and takes a file without a count for one without NaN. So a delete, an overwrite or an upsert by a
condition that a file's least and greatest numbers meet removes the rows with NaN, too, and so do those of engines.

Whether a row stays, it asks of each column of a condition by itself. So a delete or an overwrite loses rows for which
the condition is unknown, since a column is null, and leaves rows that meet it.

It rounds a condition's value to the column's type: `id >= 1.4` deletes the row whose id is 1. It compares a datetime
that has a time zone with times that have none, and one without with instants: it takes each for UTC. It takes infinity
for no value of a float, so that a filter misses rows, and an upsert doubles them.

It compares a partition's null with a condition's value. So a scan fails, or counts the rows of which that is unknown.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from functools import wraps
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions
from pyiceberg.avro import STRUCT_DOUBLE
from pyiceberg.avro.reader import DoubleReader, UUIDReader
from pyiceberg.expressions import BoundUnaryPredicate, literals
from pyiceberg.expressions.visitors import ROWS_MIGHT_NOT_MATCH, ResidualVisitor, _StrictMetricsEvaluationVisitor
from pyiceberg.io import pyarrow as io
from pyiceberg.io.pyarrow import (
    ArrowProjectionVisitor,
    ParquetFormatWriter,
    _ConvertToArrowExpression,
    _determine_partitions,
    _expression_to_complementary_pyarrow,
    _get_field_from_arrow_table,
    expression_to_pyarrow,
)
from pyiceberg.transforms import TimeTransform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from txpool.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.avro.decoder import BinaryDecoder
    from pyiceberg.io.fileformat import DataFileStatistics
    from pyiceberg.types import NestedField

_list = ArrowProjectionVisitor.list
_map = ArrowProjectionVisitor.map
_write = ParquetFormatWriter.write
_close = ParquetFormatWriter.close
_in = _ConvertToArrowExpression.visit_in
_not_equal = _StrictMetricsEvaluationVisitor.visit_not_equal
_not_in = _StrictMetricsEvaluationVisitor.visit_not_in
_literal = literals.literal
_left = ResidualVisitor.visit_bound_predicate
#: By the classes of a condition's value and of a column: pyiceberg's conversion.
_CONVERSIONS = [
    (kind, column, vars(kind)["to"].dispatcher.dispatch(column))
    for kind, *columns in (
        (literals.DecimalLiteral, IntegerType, LongType, FloatType),
        (literals.StringLiteral, IntegerType, LongType, FloatType),
        (literals.LongLiteral, DoubleType),
        (literals.DoubleLiteral, DecimalType, FloatType),
        (literals.TimestampLiteral, DateType),
    )
    for column in columns
]
_CUT_AS_TEXTS = (StringType, BinaryType)
_MICROSECONDS = 86_400_000_000


def correct() -> None:
    """Correct pyiceberg: the projection, partitioning, what it reads of partitions, the counts of NaN, conditions."""
    ArrowProjectionVisitor.list = _kept_list  # type: ignore[assignment, method-assign]
    ArrowProjectionVisitor.map = _kept_map  # type: ignore[assignment, method-assign]
    vars(io)[_determine_partitions.__name__] = _whole
    DoubleReader.read = _double  # type: ignore[assignment, method-assign]
    UUIDReader.read = _bytes_of_uuid  # type: ignore[assignment, method-assign]
    ParquetFormatWriter.write = _write_and_count  # type: ignore[method-assign]
    ParquetFormatWriter.close = _close_with_counts  # type: ignore[method-assign]
    _StrictMetricsEvaluationVisitor._can_contain_nans = _can_contain_nans  # type: ignore[method-assign]
    _StrictMetricsEvaluationVisitor.visit_not_equal = _unless_null(_not_equal)  # type: ignore[method-assign]
    _StrictMetricsEvaluationVisitor.visit_not_in = _unless_null(_not_in)  # type: ignore[method-assign]
    _ConvertToArrowExpression.visit_in = _known_in  # type: ignore[method-assign]
    _ConvertToArrowExpression.visit_not_in = _known_not_in  # type: ignore[method-assign]
    vars(io)[_expression_to_complementary_pyarrow.__name__] = _stays
    ResidualVisitor.visit_bound_predicate = _left_of_nulls  # type: ignore[method-assign]
    for kind, column, convert in _CONVERSIONS:
        vars(kind)["to"].register(column, _exact(convert))
    vars(expressions)[_literal.__name__] = _with_zone
    for column in (TimestampType, TimestamptzType):
        vars(literals.TimestampLiteral)["to"].register(column, _of_the_zone)


def _kept_list(self: ArrowProjectionVisitor, kind: Any, given: Any, *parts: Any) -> Any:
    return _with_nulls(given, _list(self, kind, given, *parts))


def _kept_map(self: ArrowProjectionVisitor, kind: Any, given: Any, *parts: Any) -> Any:
    return _with_nulls(given, _map(self, kind, given, *parts))


def _with_nulls(given: Any, made: Any) -> Any:
    if made is None or made.null_count == given.null_count:
        return made
    mask = given.is_null()
    offsets = pc.add(made.offsets, pa.scalar(0, made.offsets.type))  # a copy: a mask goes with none that is sliced
    if isinstance(made, pa.MapArray):
        return pa.MapArray.from_arrays(offsets, made.keys, made.items, made.type, mask=mask)
    return type(made).from_arrays(offsets, made.values, made.type, mask=mask)


def _double(_: DoubleReader, decoder: BinaryDecoder) -> float:
    found: float = STRUCT_DOUBLE.unpack(decoder.read(8))[0]
    return found


def _bytes_of_uuid(_: UUIDReader, decoder: BinaryDecoder) -> bytes:
    return decoder.read(16)


def _whole(spec: Any, schema: Any, arrow_table: Any) -> Any:
    for part in spec.fields:
        kind = schema.find_type(part.source_id)
        name = str(schema.find_column_name(part.source_id))
        if isinstance(part.transform, (TruncateTransform, TimeTransform)) and not isinstance(kind, _CUT_AS_TEXTS):
            ends = pa.array(pc.min_max(_get_field_from_arrow_table(arrow_table, name)).values())
            if _below_zero(ends) != _below_zero(part.transform.pyarrow_transform(kind)(ends)):
                raise DataError(
                    f"the table is partitioned by {part.transform} of {name}, where a row has a value so near the end "
                    "of its type that its partition would be another's, and it would not be found: nothing was "
                    "written. Overwrite this value first, or partition by the column itself"
                )
    made = list(_determine_partitions(spec, schema, arrow_table))
    if sum(each.arrow_table_partition.num_rows for each in made) != arrow_table.num_rows:
        fields = ", ".join(str(schema.find_column_name(each.source_id)) for each in spec.fields)
        raise DataError(
            f"the table is partitioned by {fields}, where rows have NaN or -0.0: they would be lost or doubled, and "
            "nothing was written. Overwrite these values first, or partition by another column"
        )
    return made


def _below_zero(ends: pa.Array) -> list[bool | None]:
    found: list[bool | None] = pc.less(ends, pa.scalar(0, ends.type)).to_pylist()
    return found


def _write_and_count(self: ParquetFormatWriter, table: pa.Table) -> None:
    _write(self, table)
    counts = vars(self).setdefault("nans", Counter())
    for field in self._file_schema.fields:
        for number, count in _nans(table[field.name], field):
            counts[number] += count


def _close_with_counts(self: ParquetFormatWriter) -> DataFileStatistics:
    made = _close(self)
    made.nan_value_counts.update(vars(self)["nans"])
    return made


def _nans(column: pa.ChunkedArray, field: NestedField) -> Iterator[tuple[int, int]]:
    """How many NaN a column has, and the fields in it."""
    kind = field.field_type
    if isinstance(kind, (DoubleType, FloatType)):
        yield field.field_id, pc.sum(pc.is_nan(column)).as_py() or 0
    elif isinstance(kind, StructType):
        for each in kind.fields:
            yield from _nans(pc.struct_field(column, each.name), each)


def _can_contain_nans(self: _StrictMetricsEvaluationVisitor, field_id: int) -> bool:
    count = self.nan_counts.get(field_id)
    return isinstance(self._get_field(field_id).field_type, (DoubleType, FloatType)) if count is None else count > 0


def _unless_null(visit: Callable[..., bool]) -> Callable[..., bool]:
    """A null is not unequal to a value."""

    @wraps(visit)
    def visited(self: _StrictMetricsEvaluationVisitor, term: Any, *args: Any, **values: Any) -> bool:
        if self._can_contain_nulls(term.ref().field.field_id):
            return ROWS_MIGHT_NOT_MATCH
        return visit(self, term, *args, **values)

    return visited


def _known_in(self: _ConvertToArrowExpression, term: Any, literals: set[Any]) -> pc.Expression:
    """Null of a null, as any comparison."""
    there = pc.field(self._get_field_name(term)).is_valid()
    return pc.if_else(there, _in(self, term, literals), pa.scalar(None, pa.bool_()))


def _known_not_in(self: _ConvertToArrowExpression, term: Any, literals: set[Any]) -> pc.Expression:
    return ~_known_in(self, term, literals)


def _stays(expr: Any, schema: Any = None) -> pc.Expression:
    """What a delete leaves: rows that do not meet its condition, or for which that is unknown."""
    met = expression_to_pyarrow(expr, schema)
    return ~met | met.is_null()


def _left_of_nulls(self: ResidualVisitor, predicate: Any) -> Any:
    """What is left to be asked of the rows of a partition: all, if that is null."""
    parts = self.spec.fields_by_source_id(predicate.term.ref().field.field_id)
    nulls = [self.struct[self.spec.fields.index(each)] is None for each in parts]
    if any(nulls) and not isinstance(predicate, BoundUnaryPredicate):
        return predicate
    return _left(self, predicate)


def _exact(convert: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """ValueError for a value that the column cannot have."""

    def converted(self: Any, kind: Any) -> Any:
        made, given = convert(self, kind), self.value
        beyond = isinstance(made, (literals.AboveMax, literals.BelowMin))
        if isinstance(kind, DateType):
            same = made.value * _MICROSECONDS == given
        elif isinstance(kind, FloatType):
            if math.isinf(float(given)):
                return literals.FloatLiteral(float(given))
            same, beyond = not beyond, False  # digits do not count, as of 0.1
        else:
            same = float(made.value) == given if isinstance(given, float) else Decimal(made.value) == Decimal(given)
        if not same and not beyond:
            raise ValueError(f"{given} is no value of {kind}, to which it would be rounded")
        return made

    return converted


def _with_zone(value: Any) -> Any:
    made = _literal(value)
    if isinstance(value, datetime.datetime):
        if getattr(value, "nanosecond", 0):
            raise ValueError(f"{value} has nanoseconds, which would be cut off")
        vars(made)["zoned"] = value.tzinfo is not None
    return made


def _of_the_zone(self: Any, kind: Any) -> Any:
    zoned = isinstance(kind, TimestamptzType)
    if vars(self).get("zoned", zoned) != zoned:
        raise ValueError(f"a datetime {'without' if zoned else 'with'} a time zone is no value of {kind}")
    return self
