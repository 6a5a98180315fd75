"""Decodes the CSV of PostgreSQL's COPY into Arrow's record batches.

COPY's CSV distinguishes NULL from an empty text by its quotes, and Arrow parses it in C. The server converts the types
that have no form in CSV: a timestamp with time zone to UTC, bytea to hexadecimal digits, and an array to two columns:
the number of its elements, and the elements as a CSV file of one column. These files of a batch are concatenated and
parsed at once. A value that does not fit into its column's type is an error, and never becomes NULL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyspark.sql import types as T  # noqa: N812 - as every user of Spark knows it
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType

from txpool.errors import DataError
from txpool.spark.types.buffers import concatenated, offsets_of
from txpool.spark.types.identifiers import quoted

#: COPY's options for what `decode` reads.
FORMAT = r"(format csv, null E'\\N', encoding 'UTF8')"
#: The settings that a session needs, so that it writes values as `decode` reads them.
SETTINGS = "select set_config('datestyle', 'ISO', true), set_config('extra_float_digits', '1', true)"

#: About the size of the CSV that becomes one batch.
_SLICE_BYTES = 4 << 20
_MAX_PRECISION = 38
_PARSE = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
_ERROR_COLUMN = re.compile(r"In CSV column #(\d+): (?:Row #\d+: )?")


@dataclass(frozen=True, slots=True)
class _DecodedType:
    """How values of a type of PostgreSQL are read."""

    spark: DataType
    #: The type as which Arrow parses the text.
    parsed: pa.DataType
    #: The SQL expression of the text, for the column {0}.
    sql: str = "{0}"


_TEXT = _DecodedType(T.StringType(), pa.string())
_MICROSECOND_TIMESTAMP = pa.timestamp("us")
# Months have no fixed length. An interval with months, or an infinite one, stays text, which is an error to the parser.
_MICROSECONDS = (
    "case when extract(year from {0}) = 0 and extract(month from {0}) = 0 "
    "then (extract(epoch from {0}) * 1000000)::int8::text else {0}::text end"
)
_TYPES: Mapping[str, _DecodedType] = {
    "bool": _DecodedType(T.BooleanType(), pa.bool_()),
    "int2": _DecodedType(T.ShortType(), pa.int16()),
    "int4": _DecodedType(T.IntegerType(), pa.int32()),
    "int8": _DecodedType(T.LongType(), pa.int64()),
    "float4": _DecodedType(T.FloatType(), pa.float32()),
    "float8": _DecodedType(T.DoubleType(), pa.float64()),
    "text": _TEXT,
    "varchar": _TEXT,
    "bpchar": _TEXT,
    "name": _TEXT,
    "citext": _TEXT,
    "xml": _TEXT,
    "json": _TEXT,
    "jsonb": _TEXT,
    "uuid": _TEXT,
    "bytea": _DecodedType(T.BinaryType(), pa.binary(), "encode({0}, 'hex')"),
    "date": _DecodedType(T.DateType(), pa.date32()),
    "time": _TEXT,  # Spark's TimeType is disabled by default, and has no 24:00
    "timestamp": _DecodedType(T.TimestampNTZType(), _MICROSECOND_TIMESTAMP),
    "timestamptz": _DecodedType(T.TimestampType(), _MICROSECOND_TIMESTAMP, "({0} at time zone 'UTC')"),
    "interval": _DecodedType(T.DayTimeIntervalType(), pa.int64(), _MICROSECONDS),
}
_ELEMENT = r"""case when e is null then E'\\N' else '"' || replace(format('%s', {0}), '"', '""') || '"' end || E'\n'"""
# An array of more than one dimension stays text, which fails to parse as a number.
_COUNT = "case when array_ndims({0}) > 1 then {0}::text else cardinality({0})::text end"
_ELEMENTS = "(select string_agg({1}, '' order by i) from unnest({0}) with ordinality as u(e, i))"


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """A column that is read, as the database describes it."""

    name: str
    #: PostgreSQL's name of the type; of an array its element type, of a domain its base type.
    type: str
    array: bool = False
    enum: bool = False
    #: Precision and scale of a numeric; None if it has no limits.
    digits: tuple[int, int] | None = None

    @property
    def known(self) -> bool:
        """Whether Spark has a type for it."""
        if self.type == "numeric":
            return self.digits is None or self._decimal().precision <= _MAX_PRECISION
        return self.enum or self.type in _TYPES

    @property
    def spark(self) -> DataType:
        """Spark's type for the column, if it is `known`."""
        return T.ArrayType(self._decoded_type().spark) if self.array else self._decoded_type().spark

    def expressions(self) -> list[str]:
        """The SQL expressions to select for the column."""
        name = quoted(self.name)
        sql = self._decoded_type().sql
        if not self.array:
            return [sql.format(name)]
        return [_COUNT.format(name), _ELEMENTS.format(name, _ELEMENT.format(sql.format("e")))]

    def parsed_types(self) -> list[pa.DataType]:
        """The types as which Arrow parses the text of each of the expressions."""
        return [pa.int32(), pa.binary()] if self.array else [self._decoded_type().parsed]

    def decode(self, texts: Iterator[pa.Array]) -> pa.Array:
        """The values of the column, from the parsed text of its expressions. DataError if one does not fit."""
        if not self.array:
            return self._converted(next(texts))
        counts, files = next(texts), next(texts)
        (elements,) = _parse_csv(bytes(concatenated(files)), [(self.name, self._decoded_type().parsed)])
        offsets = np.concatenate(([0], np.cumsum(pc.fill_null(counts, 0).to_numpy()))).astype(np.int32)
        kind = to_arrow_type(self.spark, timezone="UTC")
        return pa.ListArray.from_arrays(pa.array(offsets), self._converted(elements), type=kind, mask=counts.is_null())

    def _decoded_type(self) -> _DecodedType:
        if self.type == "numeric":
            kind = self._decimal()
            return _DecodedType(kind, pa.decimal128(kind.precision, kind.scale))
        return _TEXT if self.enum else _TYPES[self.type]

    def _decimal(self) -> T.DecimalType:
        if self.digits is None:
            return T.DecimalType(_MAX_PRECISION, 18)  # as Spark's JDBC source has it
        precision, scale = self.digits  # a scale may be below zero, and above the precision
        return T.DecimalType(max(precision, scale, precision - scale), max(scale, 0))

    def _converted(self, parsed: pa.Array) -> pa.Array:
        if self.type == "bytea":
            return _from_hex(parsed)
        if self.type == "numeric":
            try:
                parsed.validate(full=True)  # the parser does not reject a number with too many digits
            except pa.ArrowInvalid as error:
                raise _value_error(self.name, str(error)) from error
        return parsed.cast(to_arrow_type(self._decoded_type().spark, timezone="UTC"))


def decode(rows: Iterable[bytes], columns: Sequence[ReadColumn], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """COPY's rows as batches of the schema. DataError with the column if a value does not fit."""
    types = [(column.name, kind) for column in columns for kind in column.parsed_types()]
    for text in _slices(rows):
        texts = iter(_parse_csv(text, types))
        arrays = [column.decode(texts) for column in columns]
        for field, array in zip(schema, arrays, strict=True):
            if array.null_count and not field.nullable:
                raise DataError(f"column {field.name}: a value is NULL, but the given schema says it is not nullable")
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _slices(rows: Iterable[bytes]) -> Iterator[bytearray]:
    """The rows in pieces of about _SLICE_BYTES; each piece has whole rows."""
    pending = bytearray()  # a list of that many rows would keep the garbage collector busy
    for row in rows:
        pending += row
        if len(pending) >= _SLICE_BYTES:
            yield pending
            pending = bytearray()
    if pending:
        yield pending


def _parse_csv(text: bytes | bytearray, types: Sequence[tuple[str, pa.DataType]]) -> list[pa.Array]:
    """The columns of a CSV file; `types` has for each its name in errors, and its type. DataError."""
    if not text:
        return [pa.array([], kind) for _, kind in types]
    numbers = [str(number) for number, _ in enumerate(types)]
    reading = csv.ReadOptions(column_names=numbers, block_size=len(text), use_threads=False)
    converting = csv.ConvertOptions(
        column_types=dict(zip(numbers, (kind for _, kind in types), strict=True)),
        null_values=["\\N"],
        true_values=["t"],
        false_values=["f"],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    try:
        table = csv.read_csv(pa.BufferReader(text), reading, _PARSE, converting)
    except pa.ArrowInvalid as error:
        found = _ERROR_COLUMN.match(str(error))
        if found is None:
            raise
        raise _value_error(types[int(found[1])][0], str(error)[found.end() :]) from error
    return [column.combine_chunks() for column in table.columns]


def _value_error(column: str, why: str) -> DataError:
    return DataError(
        f"column {column}: a value has no counterpart in Spark: {why}. Cast the column in SQL, with "
        '.option("query", "select …")'
    )


def _from_hex(array: pa.BinaryArray) -> pa.BinaryArray:
    """The bytes of values that are hexadecimal digits."""
    offsets = offsets_of(array)
    whole = bytes.fromhex(bytes(concatenated(array)).decode("ascii"))
    buffers = [pa.py_buffer(np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))]
    buffers += [pa.py_buffer((offsets - offsets[0]) // 2), pa.py_buffer(whole)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(array), buffers)
