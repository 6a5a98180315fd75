"""Delta tables by deltalake, which is imported here alone: what a table is, files for its rows, and its log.

Rows are written into a table of their own, in the staging folder, which has the target's protocol and metadata. So
deltalake itself divides them by partitions, counts them, and refuses those that break a constraint.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from txpool.errors import ConfigurationError, DataError, Error, NotSupportedError, OperationalError, described
from txpool.resources.delta.limits import right, with_nan
from txpool.resources.files.place import is_name
from txpool.resources.files.tree import sync_file, write_file

if TYPE_CHECKING:
    import pyarrow as pa

#: Whoever writes a table with other features has more to do than to add files.
_FEATURES: Final = {
    *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "timestampNtz", "deletionVectors"),
    *("v2Checkpoint", "vacuumProtocolCheck", "generatedColumns", "identityColumns", "columnMapping"),
}
#: Metadata of a column whose values the table makes, and not the writer.
_MADE: Final = ("delta.generationExpression", "delta.identity.", "CURRENT_DEFAULT")
#: Types whose values deltalake keeps as partitions. It changes bytes, and cannot read some decimals and floats again.
_PARTITIONS: Final = {"string", "byte", "short", "integer", "long", "boolean", "date", "timestamp", "timestamp_ntz"}
#: Metadata of a text that Spark's writer keeps to a length, and the lengths that are kept here, too.
_LENGTH: Final = "__CHAR_VARCHAR_TYPE_STRING"
_OF_LENGTH: Final = re.compile(r"(char|varchar)\((\d+)\)")
#: Texts that partitions make null.
_NULLS: Final = ["", "__HIVE_DEFAULT_PARTITION__"]
#: What changes nothing of how rows are written.
_HARMLESS: Final = re.compile(r"(?!delta\.)|delta\.(logRetention|deletedFileRetention|checkpoint|enableExpiredLog)")
#: The folder of a table's log.
LOG: Final = "_delta_log"
#: The entry of a log, before it has its name; and what no log has of a file: the folder that it is staged in.
_ENTRY: Final = "entry"
SOURCE: Final = "source"
#: Year 9999: a table may forget old transactions, and Spark then forgets those without a time at once.
_NEVER_OLD: Final = 253_402_300_799_999
#: What deltalake draws in the texts of its errors.
_DRAWN: Final = re.compile(r"\x1b\[\d+m|↳")
#: A full disk, or the like, which says nothing of the rows. At the end: a row may be quoted, and say so, too.
_OF_THE_SYSTEM: Final = re.compile(r"\(os error \d+\)$")
#: What deltalake reads as another character in a folder's name.
_CHANGED: Final = re.compile(r"%[0-9A-Fa-f]{2}|\\")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\..*")


class NoTable(OperationalError):
    """There is no Delta table."""


@contextmanager
def delta(where: str, refused: type[Error] = OperationalError) -> Iterator[Any]:
    """deltalake; its errors in the block become txpool's: `refused` if it does not do what was asked."""
    try:
        import deltalake
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise ConfigurationError(
            f"{where}: driver = delta needs deltalake and pyarrow: pip install 'txpool[delta]' ({described(error)})"
        ) from error
    try:
        yield deltalake
    except DeltaError as error:
        kind = OperationalError if _OF_THE_SYSTEM.search(str(error)) else refused
        raise kind(f"{where}: deltalake refuses: {described(error)}") from error
    except OSError as error:
        if type(error) is not OSError or error.errno is not None:
            raise
        text = " ".join(_DRAWN.sub("", str(error)).split())
        raise OperationalError(f"{where}: deltalake cannot read or write: {text}") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Rust's, and no Exception
            raise
        raise OperationalError(
            f"{where}: deltalake has given up: {described(error)}. If this process was forked from one that had used "
            "Delta tables, start it by spawn or forkserver instead"
        ) from None


@dataclass(frozen=True, slots=True)
class TableState:
    """A table's protocol and metadata, as its log has them: plain data."""

    protocol: dict[str, Any]
    metadata: dict[str, Any]

    @property
    def fields(self) -> dict[str, dict[str, Any]]:
        """The columns, by their names, without comments."""
        found = json.loads(self.metadata["schemaString"], object_hook=_without_comment)["fields"]
        return {each["name"]: each for each in found}

    @property
    def partitions(self) -> list[str]:
        found: list[str] = self.metadata["partitionColumns"]
        return found

    def arrow(self, where: str) -> pa.Schema:
        """The types of its columns in Arrow."""
        import pyarrow as pa

        with delta(where) as deltalake:
            return pa.schema(deltalake.Schema.from_json(self.metadata["schemaString"]).to_arrow())

    def require_writable(self, where: str) -> None:
        """NotSupportedError if to add files is not all that a writer has to do."""
        more = sorted(set(self.protocol.get("writerFeatures") or ()) - _FEATURES)
        if self.metadata["configuration"].get("delta.columnMapping.mode", "none") != "none":
            more.append("columnMapping")
        for name, field in self.fields.items():
            if any(key.startswith(_MADE) for key in field["metadata"]):
                more.append(f"a default, generated or identity column, {name}")
            length = field["metadata"].get(_LENGTH, "")
            if _LENGTH in json.dumps(field["type"]) or (length and not _OF_LENGTH.fullmatch(length)):
                more.append(f"texts of a certain length within others, {name}, {length}")
            if name in self.partitions and field["type"] not in _PARTITIONS:
                more.append(f"partitions by {name}, {field['type']}")
        if more:
            raise NotSupportedError(
                f"{where}: the table has {', '.join(more)}, which txpool does not write. Nothing was done; write it by "
                "deltalake or Spark, in a step of its own"
            )

    def why_not(self, former: TableState) -> str:
        """Why rows that were written for a former state do not belong into this one; empty if they may."""
        if self.metadata["id"] != former.metadata["id"]:
            return "another table has taken its place"
        if self.partitions != former.partitions:
            return "its partitions have changed"
        return _why_not_in(self.fields, former.fields)

    def __eq__(self, other: object) -> bool:
        """Whether rows are written in the same way."""
        return isinstance(other, TableState) and self._rules == other._rules

    __hash__ = None  # type: ignore[assignment]

    @property
    def _rules(self) -> tuple[Any, ...]:
        configuration = {
            key: value for key, value in self.metadata["configuration"].items() if not _HARMLESS.match(key)
        }
        return self.protocol, self.metadata["id"], self.fields, self.partitions, configuration


def _without_comment(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != "comment"}


def _why_not_in(fields: dict[str, dict[str, Any]], former: dict[str, dict[str, Any]]) -> str:
    """Why rows with the former fields cannot have these, whatever is in them; empty if they may."""
    for name, field in former.items():
        if name not in fields or not _holds(fields[name]["type"], field["type"]):
            return f"its column {name} has changed"
    new = [name for name, field in fields.items() if name not in former and not field["nullable"]]
    return f"its new column {new[0]} must have a value" if new else ""


def _holds(kind: Any, former: Any) -> bool:
    """Whether a type, as a log has it, is the former one, but for fields that structs in it have more."""
    if isinstance(kind, str) or isinstance(former, str) or kind["type"] != former["type"]:
        return bool(kind == former)
    if kind["type"] == "struct":
        return not _why_not_in(*({each["name"]: each for each in found["fields"]} for found in (kind, former)))
    return all(_holds(kind[part], former[part]) for part in ("keyType", "valueType", "elementType") if part in kind)


class Append(NamedTuple):
    """The files that a prepared branch adds to one table, and what that was when they were written."""

    table: str
    state: TableState
    #: As the table's log will have them, but for `SOURCE`, the folder that a file is staged in.
    adds: Sequence[dict[str, Any]]

    def encode(self) -> list[Any]:
        return [self.table, self.state.protocol, self.state.metadata, [*self.adds]]


def path_of(add: dict[str, Any]) -> str:
    """Where the file of an entry is, in the table's folder."""
    return unquote(add["path"])


def decode_append(encoded: Any) -> Append:
    """OperationalError if it is damaged."""
    try:
        table, protocol, metadata, adds = encoded
        files = [path_of(each) for each in adds]
        names = [table, *files, *(each[SOURCE] for each in adds)]
        if all(is_name(name) for name in names) and not any(file.startswith(LOG) for file in files):
            return Append(table, TableState(protocol, metadata), adds)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OperationalError(f"a manifest is damaged: {described(error)}") from error
    raise OperationalError(f"a manifest is damaged: it names files of {table} that are not in the table's folder")


def load(path: Path, where: str) -> tuple[Any, TableState]:
    """deltalake's table, and its state. NoTable; NotSupportedError; OperationalError for no readable log; OSError."""
    if _CHANGED.search(str(path)):
        raise NotSupportedError(f"{where}: {path} has a % or a \\ in it, and deltalake takes it for another: rename it")
    try:
        os.stat(path / LOG)  # deltalake does not tell apart what is not there and what may not be read
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NoTable(
            f"{where}: there is no Delta table: create it by DeltaTable.create(), or correct the name"
        ) from error
    with delta(where) as deltalake:
        table = deltalake.DeltaTable(str(path))
        about, versions = table.metadata(), table.protocol()
        protocol = {"minReaderVersion": versions.min_reader_version, "minWriterVersion": versions.min_writer_version}
        for name, features in (("reader", versions.reader_features), ("writer", versions.writer_features)):
            if features is not None:
                protocol[f"{name}Features"] = sorted(features)
        return table, TableState(
            protocol,
            {
                "id": str(about.id),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": table.schema().to_json(),
                "partitionColumns": about.partition_columns,
                "configuration": about.configuration,
                "createdTime": about.created_time,
            },
        )


def has_committed(table: Any, xid: str, where: str) -> bool:
    """Whether the table's log says that this branch has appended its rows."""
    with delta(where):
        return table.transaction_version(xid) is not None


def commit(version: int, append: Append, xid: str, staging: int, log: int) -> bool:
    """Make one version of the table, in its open log; False if others were faster.

    deltalake would sync nothing: a power loss could leave an entry without contents, and nobody could read the table.
    So what is behind the name is durable; the name is not yet.
    """
    parameters = {"mode": "Append", "partitionBy": json.dumps(append.state.partitions)}
    about = {"operation": "WRITE", "operationParameters": parameters, "isBlindAppend": True, "engineInfo": "txpool"}
    actions: list[dict[str, Any]] = [{"commitInfo": {"timestamp": int(time.time() * 1000), **about}}]
    actions.append({"txn": {"appId": xid, "version": 1, "lastUpdated": _NEVER_OLD}})
    actions += ({"add": {key: value for key, value in each.items() if key != SOURCE}} for each in append.adds)
    write_file(_ENTRY, _lines(actions), staging)
    sync_file(_ENTRY, staging)
    try:
        os.link(_ENTRY, f"{version:020}.json", src_dir_fd=staging, dst_dir_fd=log)
    except FileExistsError:
        return False
    return True


def _lines(actions: Iterable[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(each)}\n" for each in actions)


def sync_log(log: int, version: int = 0) -> None:
    """Make a table's open log durable, from a version and its last checkpoint on: also what others have written."""
    for name in entries(log):
        if name[:20] >= f"{version:020}":
            sync_file(name, log)
    os.fsync(log)


def entries(log: int) -> list[str]:
    """The names of what readers of a table's open log need: its last checkpoint, and what came later."""
    names = sorted(os.listdir(log))
    last = max((found[1] for name in names if (found := _CHECKPOINT.match(name))), default="")
    return [name for name in names if name[:20].isdecimal() and name[:20] >= last]


def write_rows(
    folder: Path, state: TableState, batches: Iterable[pa.RecordBatch], schema: pa.Schema, where: str
) -> tuple[int, list[dict[str, Any]]]:
    """Write rows of the table's types into an empty folder: their number, and their files as a log has them.

    DataError if the table refuses a row, or a value would change. Nothing is synced.
    """
    import pyarrow as pa

    (folder / LOG).mkdir()
    (folder / LOG / f"{0:020}.json").write_text(_lines([{"protocol": state.protocol}, {"metaData": state.metadata}]))
    rows, failures = 0, []
    nan: set[str] = set()

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        try:
            for batch in batches:
                _require_partitionable(batch, state, where)
                _require_lengths(batch, state, where)
                nan.update(with_nan(batch))
                rows += batch.num_rows
                yield batch
        except BaseException as error:  # deltalake would make a text of it
            failures.append(error)
            raise

    try:
        with delta(where, DataError) as deltalake:
            reader = pa.RecordBatchReader.from_batches(schema, counted())
            deltalake.write_deltalake(str(folder), reader, mode="append")
    except Exception:
        if failures:
            raise failures[0] from None
        raise
    adds = []
    for line in (folder / LOG / f"{1:020}.json").read_bytes().splitlines():  # a text may have other ends of lines
        add = json.loads(line).get("add")
        if add is not None:
            add["stats"] = right(add["stats"], folder / path_of(add), state.fields, nan)
            adds.append({**add, "partitionValues": _with_zone(add["partitionValues"], state), SOURCE: folder.name})
    if sum(json.loads(each["stats"])["numRecords"] for each in adds) != rows:
        raise OperationalError(f"{where}: {rows} rows were given, and their files have another number")
    return rows, adds


def _with_zone(values: dict[str, str | None], state: TableState) -> dict[str, str | None]:
    """A file's partition: its instants are in UTC, and say so. Spark reads others in its session's time zone."""
    return {
        name: f"{value.replace(' ', 'T')}Z" if value and state.fields[name]["type"] == "timestamp" else value
        for name, value in values.items()
    }


def _require_partitionable(batch: pa.RecordBatch, state: TableState, where: str) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in state.partitions:
        if state.fields[name]["type"] == "string" and pc.any(pc.is_in(batch[name], pa.array(_NULLS))).as_py():
            raise DataError(
                f"{where} is partitioned by {name}, in which a row has one of the texts {_NULLS}, and nothing was "
                "written: Delta's partitions would make it null"
            )


def _require_lengths(batch: pa.RecordBatch, state: TableState, where: str) -> None:
    import pyarrow.compute as pc

    for name, field in state.fields.items():
        found = _OF_LENGTH.fullmatch(field["metadata"].get(_LENGTH, ""))
        if found is None:
            continue
        wrong = pc.not_equal if found[1] == "char" else pc.greater
        if pc.any(wrong(pc.utf8_length(batch[name]), int(found[2]))).as_py():
            raise DataError(
                f"{where}: column {name} is {found[0]}, and a row has a text of another length, and nothing was "
                "written: cut it, or pad it with spaces for char"
            )


def staged_rows(folder: Path, schema: pa.Schema, where: str) -> pa.Table:
    """The rows that were written into a folder; a column that came later is null."""
    import pyarrow as pa

    with delta(where) as deltalake:
        table = deltalake.DeltaTable(str(folder))
        found = pa.table(deltalake.QueryBuilder().register("staged", table).execute("select * from staged").read_all())
    for field in schema:
        if field.name not in found.column_names:
            found = found.append_column(field, pa.nulls(found.num_rows, field.type))
    return found.select(schema.names).cast(schema)
