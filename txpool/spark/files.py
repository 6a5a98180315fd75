"""write_files(): Spark's own writer writes into a staged folder, which appears when the transaction commits."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final, Literal

from pyspark.sql import DataFrame, Observation
from pyspark.sql.functions import count, lit, raise_error, when
from pyspark.sql.types import BinaryType, StringType, TimestampType

from txpool.datasource import Source, find_source
from txpool.errors import ConfigurationError, NotSupportedError, OperationalError, ProgrammingError
from txpool.files import folder
from txpool.resources.files.place import named
from txpool.resources.s3.manager import MANAGER
from txpool.resources.s3.work import STAGING
from txpool.spark.commit.session import context_of
from txpool.tm.ambient import current
from txpool.tm.demarcation.block import transaction

#: Options by which Spark's writers of texts keep what they would cut off: microseconds, and spaces at the ends.
_KEPT: Final[dict[str, str | bool]] = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreLeadingWhiteSpace": False,
    "ignoreTrailingWhiteSpace": False,
}


def write_files(
    df: DataFrame,
    datasource: str | Path | Source,
    name: str | os.PathLike[str],
    format: str = "parquet",  # noqa: A002 - as Spark calls it
    mode: Literal["error", "overwrite"] = "error",
    *,
    partition_by: Sequence[str] = (),
    **options: str | int | float | bool,
) -> None:
    """Write a DataFrame into a folder of files, as a part of the ambient transaction or in one of its own.

    Spark's own writer does it, so `format` is any of its formats that write files, and `options` are the writer's. In
    texts it keeps microseconds and the spaces at their ends, unless the options say otherwise.
    The folder appears under this name when the transaction commits, whole. `overwrite` replaces a folder that is
    there; `error` raises. Every executor must have the datasource's folder under the same path. To a bucket the
    driver sends what Spark has written into the datasource's `staging`, and `mode` is `error`. Call it in the
    thread that began the transaction. Errors: as `txpool.folder`; Spark's own if a task failed for good;
    OperationalError if not all rows have arrived in the folder; NotSupportedError if the format has written no
    file. After an error the transaction rolls back.
    """
    context = context_of(df, "write_files()")
    source, target = find_source(datasource), named(name)
    _require_possible(source, target, mode, options)
    if mode == "overwrite" and partition_by:
        _require_whole(df, options, target)
    df = _partitionable(df, partition_by, target)
    with transaction() if current() is None else nullcontext():
        staged = folder(source, target, overwrite=mode == "overwrite")
        try:
            with staged.filling() as filled:
                observed, path = Observation(), f"file://{filled}"
                elsewhere = not str(context.master).startswith("local")  # or it has this disk, and nothing is counted
                counted = df.observe(observed, count(lit(1)).alias("rows")) if elsewhere else df
                writer = counted.write.format(format).options(**_KEPT).options(**options)  # the last counts
                # The folder is there, and empty: Spark would remove it to overwrite it.
                writer.mode("append").partitionBy(*partition_by).save(path)
                if not os.listdir(filled) and not df.isEmpty():  # not even Spark's own mark
                    raise NotSupportedError(
                        f"format {format!r} has written no file into {target}, and the transaction rolls back. What it "
                        "has done elsewhere stays. Name a format of Spark's that writes files"
                    )
                if elsewhere:
                    reader = df.sparkSession.read.format(format).options(**options).schema(df.schema)
                    _require_all(reader.load(path), path, observed.get["rows"])
        except BaseException as error:
            ambient = current()
            if ambient is not None and not ambient.ended:
                ambient.set_rollback_only(error)  # also if the caller goes on
            raise


def _require_possible(source: Source, name: str, mode: str, options: Collection[str]) -> None:
    """An error if that is not written there so, before a job."""
    for each in ("transaction_id", "record_in"):
        if each in options:  # Spark would pass over it
            raise ProgrammingError(
                f"write_files() has no {each}, and nothing was done: write it in "
                "`with txpool.transaction(transaction_id=…, record_in=…):` around the call"
            )
    objects = source.driver == MANAGER.driver
    if mode not in ("error", "overwrite"):
        raise NotSupportedError(
            f"write_files() cannot {mode} to {name}, and nothing was done: files that come one by one are seen one by "
            "one. Write a folder of its own for each load, with mode='error' or 'overwrite'"
        )
    if {":", "\\"} & {*str(name)}:
        raise ProgrammingError(
            f"{source.name}: {name!r} has a colon or a backslash in it, and nothing was done: Spark could not read it, "
            "or what is beside it by a pattern. Write 2026-11-27T1000, or the like"
        )
    if objects and mode == "overwrite":
        raise NotSupportedError(
            f"write_files() does not overwrite {name} in {source.name}, and nothing was done: Spark gives its files "
            "new names each time, and the former objects would stay beside them. Write each load into a name of its own"
        )
    if objects and source.settings.staging is None:
        raise ConfigurationError(
            f"datasource {source.name} has no folder in which Spark writes before the upload, and nothing was done: "
            f"write {STAGING}"
        )


def _require_whole(df: DataFrame, options: Mapping[str, object], name: str) -> None:
    """NotSupportedError if Spark would replace only those partitions that have rows: the others would be lost."""
    told = {key.lower(): value for key, value in options.items()}.get("partitionoverwritemode")
    how = told or df.sparkSession.conf.get("spark.sql.sources.partitionOverwriteMode")
    if str(how).lower() == "dynamic":
        raise NotSupportedError(
            f"write_files() replaces all of {name}, and not some of its partitions, and nothing was done: "
            "partitionOverwriteMode is dynamic. Write each partition as a folder of its own, or pass "
            "partitionOverwriteMode='static' if all is to be replaced"
        )


def _partitionable(df: DataFrame, columns: Sequence[str], name: str) -> DataFrame:
    """The DataFrame, whose job fails if a row has a text that a folder's name does not keep. ProgrammingError."""
    fields = {shown: field for field in df.schema.fields for shown in (field.name.lower(), field.name)}
    for each in columns:
        field = fields.get(each) or fields.get(each.lower())  # without one, Spark says so
        if field is not None and isinstance(field.dataType, (TimestampType, BinaryType)):
            raise ProgrammingError(
                f"write_files() does not partition {name} by {each}, and nothing was done: it is "
                f"{field.dataType.simpleString()}, and the names of folders have no time zone, and not every byte. "
                "Partition by a date or a text that is made of it"
            )
        if field is not None and isinstance(field.dataType, StringType):
            value = df[f"`{field.name.replace('`', '``')}`"]
            why = f"{name} is partitioned by {each}, in which a row has an empty text, or Hive's, which would be null"
            lost = raise_error(lit(why)).cast(field.dataType)
            df = df.withColumn(field.name, when(value.isin("", "__HIVE_DEFAULT_PARTITION__"), lost).otherwise(value))
    return df


def _require_all(rows: DataFrame, path: str, written: int) -> None:
    """OperationalError if executors have written onto disks of their own: Spark reports success then."""
    found = rows.count()
    if found < written:
        raise OperationalError(
            f"tasks have written {written} rows, and {found} are in {path}: every executor must have that folder under "
            "this path, as a mount of one file system. Nothing was published, and the transaction rolls back"
        )
