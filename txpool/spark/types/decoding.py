"""PostgreSQL's CSV as Arrow's record batches: what each type is in Spark, and what the server makes of it on the way.

COPY's CSV tells NULL from an empty text by its quotes, and Arrow parses it in C. What CSV has no form for, the server
puts into one: an instant as the clock of UTC shows it, bytes as hexadecimal digits, and an array as two columns, the
number of its elements and those elements as a CSV file of one column. All such files of a batch, one behind another,
are one file again. Where a value does not fit into the type of its column, that is an error, and never a NULL.
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

#: COPY's options for what `decode` reads.
FORMAT = r"(format csv, null E'\\N', encoding 'UTF8')"
#: What a session must say of itself before it writes values as `decode` reads them.
SETTINGS = "select set_config('datestyle', 'ISO', true), set_config('extra_float_digits', '1', true)"

#: Bytes of CSV that become a batch, about.
_SLICE = 4 << 20
_WIDEST = 38
_PARSE = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
_WHERE = re.compile(r"In CSV column #(\d+): (?:Row #\d+: )?")


@dataclass(frozen=True, slots=True)
class _DecodedType:
    """A type of PostgreSQL's: what it is in Spark, as what its text is parsed, and an expression for that text."""

    spark: DataType
    parsed: pa.DataType
    sql: str = "{0}"


_TEXT = _DecodedType(T.StringType(), pa.string())
_CLOCK = pa.timestamp("us")
# A month has no length: what has one, or no end, is left as it is, and is no number then.
_MICROSECONDS = (
    "case when extract(year from {0}) = 0 and extract(month from {0}) = 0 "
    "then (extract(epoch from {0}) * 1000000)::int8::text else {0}::text end"
)
_KINDS: Mapping[str, _DecodedType] = {
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
    "time": _TEXT,  # Spark's own type for it is switched off unless one asks, and has no 24:00
    "timestamp": _DecodedType(T.TimestampNTZType(), _CLOCK),
    "timestamptz": _DecodedType(T.TimestampType(), _CLOCK, "({0} at time zone 'UTC')"),
    "interval": _DecodedType(T.DayTimeIntervalType(), pa.int64(), _MICROSECONDS),
}
_ELEMENT = r"""case when e is null then E'\\N' else '"' || replace(format('%s', {0}), '"', '""') || '"' end || E'\n'"""
# An array of more than one dimension is left as it is, and is no number then.
_COUNT = "case when array_ndims({0}) > 1 then {0}::text else cardinality({0})::text end"
_ELEMENTS = "(select string_agg({1}, '' order by i) from unnest({0}) with ordinality as u(e, i))"


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """A column of what is read, as the database describes it."""

    name: str
    #: PostgreSQL's name of the type, or of an array's elements; below any domain.
    type: str
    array: bool = False
    enum: bool = False
    #: Precision and scale of a numeric that has them.
    digits: tuple[int, int] | None = None

    @property
    def known(self) -> bool:
        """Whether Spark has a type for it."""
        if self.type == "numeric":
            return self.digits is None or self._decimal().precision <= _WIDEST
        return self.enum or self.type in _KINDS

    @property
    def spark(self) -> DataType:
        """Spark's type for it, where it is known."""
        return T.ArrayType(self._kind().spark) if self.array else self._kind().spark

    def expressions(self) -> list[str]:
        """What of it is selected."""
        name = '"' + self.name.replace('"', '""') + '"'
        sql = self._kind().sql
        if not self.array:
            return [sql.format(name)]
        return [_COUNT.format(name), _ELEMENTS.format(name, _ELEMENT.format(sql.format("e")))]

    def parsed(self) -> list[pa.DataType]:
        """As what the text of each of its expressions is parsed."""
        return [pa.int32(), pa.binary()] if self.array else [self._kind().parsed]

    def take(self, texts: Iterator[pa.Array]) -> pa.Array:
        """Its values, from the parsed text of its expressions. DataError where one does not fit."""
        if not self.array:
            return self._values(next(texts))
        counts, files = next(texts), next(texts)
        (elements,) = _parsed(_data(files), [(self.name, self._kind().parsed)])
        offsets = np.concatenate(([0], np.cumsum(pc.fill_null(counts, 0).to_numpy()))).astype(np.int32)
        kind = to_arrow_type(self.spark, timezone="UTC")
        return pa.ListArray.from_arrays(pa.array(offsets), self._values(elements), type=kind, mask=counts.is_null())

    def _kind(self) -> _DecodedType:
        if self.type == "numeric":
            kind = self._decimal()
            return _DecodedType(kind, pa.decimal128(kind.precision, kind.scale))
        return _TEXT if self.enum else _KINDS[self.type]

    def _decimal(self) -> T.DecimalType:
        if self.digits is None:
            return T.DecimalType(_WIDEST, 18)  # as Spark's JDBC source has it
        precision, scale = self.digits  # a scale may be below zero, and above the precision
        return T.DecimalType(max(precision, scale, precision - scale), max(scale, 0))

    def _values(self, parsed: pa.Array) -> pa.Array:
        if self.type == "bytea":
            return _unhexed(parsed)
        if self.type == "numeric":
            try:
                parsed.validate(full=True)  # the parser lets a number with too many digits pass
            except pa.ArrowInvalid as error:
                raise _unfit(self.name, str(error)) from error
        return parsed.cast(to_arrow_type(self._kind().spark, timezone="UTC"))


def decode(rows: Iterable[bytes], columns: Sequence[ReadColumn], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """COPY's rows as batches of the schema. DataError where a value does not fit, with its column."""
    wires = [(column.name, kind) for column in columns for kind in column.parsed()]
    for text in _slices(rows):
        texts = iter(_parsed(text, wires))
        arrays = [column.take(texts) for column in columns]
        for field, array in zip(schema, arrays, strict=True):
            if array.null_count and not field.nullable:
                raise DataError(f"column {field.name}: a value is NULL, and the schema that was given says it is not")
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _slices(rows: Iterable[bytes]) -> Iterator[bytearray]:
    """Whole rows, however wide one is."""
    pending = bytearray()  # a list of so many would keep the garbage collector busy
    for row in rows:
        pending += row
        if len(pending) >= _SLICE:
            yield pending
            pending = bytearray()
    if pending:
        yield pending


def _parsed(text: bytes | bytearray, wires: Sequence[tuple[str, pa.DataType]]) -> list[pa.Array]:
    """The columns of a CSV file, each with the name that an error says, and a type. DataError."""
    if not text:
        return [pa.array([], kind) for _, kind in wires]
    numbers = [str(number) for number, _ in enumerate(wires)]
    reading = csv.ReadOptions(column_names=numbers, block_size=len(text), use_threads=False)
    converting = csv.ConvertOptions(
        column_types=dict(zip(numbers, (kind for _, kind in wires), strict=True)),
        null_values=["\\N"],
        true_values=["t"],
        false_values=["f"],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    try:
        table = csv.read_csv(pa.BufferReader(text), reading, _PARSE, converting)
    except pa.ArrowInvalid as error:
        found = _WHERE.match(str(error))
        if found is None:
            raise
        raise _unfit(wires[int(found[1])][0], str(error)[found.end() :]) from error
    return [column.combine_chunks() for column in table.columns]


def _unfit(column: str, why: str) -> DataError:
    return DataError(
        f"column {column}: a value has no counterpart in Spark: {why}. Cast the column in SQL, with "
        '.option("query", "select …")'
    )


def _data(array: pa.BinaryArray) -> bytes:
    """All values of an array, one behind another."""
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    return bytes(memoryview(array.buffers()[2] or b"")[offsets[0] : offsets[-1]])


def _unhexed(array: pa.BinaryArray) -> pa.BinaryArray:
    """Bytes from their hexadecimal digits."""
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    whole = bytes.fromhex(_data(array).decode("ascii"))
    buffers = [pa.py_buffer(np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))]
    buffers += [pa.py_buffer((offsets - offsets[0]) // 2), pa.py_buffer(whole)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(array), buffers)
