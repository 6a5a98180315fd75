"""How the values of a column are sent to a database, and what every database would take and change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from txpool.errors import DataError, described
from txpool.spark.types import checks


@dataclass(frozen=True, slots=True)
class ColumnEncoding:
    """How the values of a column are sent to the database, and what they are checked for."""

    column: str
    kind: str
    #: The oid of the element type in PostgreSQL, which digests of recorded writes have.
    oid: int = 0
    #: The column is an array of the kind.
    array: bool = False
    #: The texts that the column can have, if those are listed.
    labels: tuple[str, ...] = ()
    #: How many digits below a second the column keeps; None if all of a microsecond's.
    digits: int | None = None
    #: How many characters a text may have; None if as many as it likes.
    length: int | None = None
    #: What JSON texts are checked for; the column changes them otherwise.
    json: checks.JsonCheck = checks.JsonCheck.NONE
    #: The values are JSON texts that Spark has made of nested data.
    nested: bool = False
    #: A column that is not NULL gives NULL a number of its own.
    numbered: bool = False
    #: A floating-point zero loses its sign.
    signless: bool = False
    #: The values have no binary form here.
    as_text: bool = False


def misfit(encoding: ColumnEncoding, error: Exception) -> DataError:
    """The error for a value of a column that the database would refuse, or change."""
    kind = f"an array of {encoding.kind}" if encoding.array else encoding.kind
    return DataError(f"column {encoding.column}: a value does not fit into {kind}: {described(error)}")


def require_kept(values: Any, encoding: ColumnEncoding) -> None:
    """ValueError for a value that any database would take, and change in such a column."""
    if encoding.numbered:
        checks.require_no_null(values)
    if encoding.signless:
        checks.require_signed_zeros_kept(values)
    if encoding.length is not None:
        checks.require_length(values, encoding.length)
    if encoding.nested:
        checks.require_no_replacement(values)
    encoding.json.require(values)
