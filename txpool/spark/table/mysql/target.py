"""Reads the description of a table of MariaDB or MySQL, and checks what a write may do to it, before any task runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txpool.datasource import DataSource, known
from txpool.errors import NotSupportedError, OperationalError, ProgrammingError
from txpool.idempotency.on_demand import recover
from txpool.resources.mysql.session.protocol import code_of
from txpool.resources.mysql.tables.own_tables import quoted
from txpool.resources.mysql.tables.staging import creator_of
from txpool.spark.table.mysql.types import BINARY_JSON, WITH_FRACTIONS, quoted_list
from txpool.spark.table.target import Target
from txpool.spark.types.columns import Column
from txpool.tm.manager import get_manager

if TYPE_CHECKING:
    from txpool.dbapi.cursor import PEP249Cursor

_NAME = re.compile(r"(?:(`(?:[^`]|``)+`|[^`.]+)\.)?(`(?:[^`]|``)+`|[^`.]+)")
_TABLE = (
    "select table_schema, table_name, table_type, engine from information_schema.tables "
    "where table_schema = %s and table_name = %s"
)
_COLUMNS = """
    select column_name, data_type, column_type, character_set_name, collation_name, character_octet_length,
        numeric_scale, datetime_precision, is_nullable, column_default, extra, generation_expression
    from information_schema.columns where table_schema = %s and table_name = %s order by ordinal_position
"""
_INDEXES = """
    select index_name, column_name, sub_part from information_schema.statistics
    where table_schema = %s and table_name = %s and non_unique = 0 order by index_name, seq_in_index
"""
#: The columns that MariaDB, whose JSON is a text, checks to be JSON.
_JSON_CHECK = re.compile(r"^\s*json_valid\(`((?:[^`]|``)+)`\)\s*$", re.I)
_CHECKS = (
    "select check_clause from information_schema.check_constraints where constraint_schema = %s and table_name = %s"
)
#: What a table's rows may have to wait for, beside its unique indexes.
_HINDRANCES = """
    select (select count(*) from information_schema.referential_constraints
        where constraint_schema = %s and table_name = %s)
    + (select count(*) from information_schema.triggers where event_object_schema = %s and event_object_table = %s)
"""
#: One of the texts that an ENUM or SET lists, and what stands for another character in it, in whatever mode.
_LABEL = re.compile(r"'((?:[^'\\]|''|\\.)*)'")
_ESCAPED = re.compile(r"''|\\.")
_CHARACTERS = {"''": "'", r"\n": "\n", r"\r": "\r", r"\0": "\0"}
#: The types in which MariaDB keeps no sign of a zero.
_FLOATS = ("float", "double")
_READ_ONLY = (1290, 1792, 1836)


@dataclass(frozen=True, slots=True)
class MySQLTarget(Target):
    """A table of MariaDB or MySQL, or one that is to be created."""

    #: The columns of each unique index that could take two rows with different keys for the same: all unique indexes.
    indexes: tuple[frozenset[str], ...] = ()
    #: The columns that, if they are not written, have a value that no other row has: a new number, or NULL.
    distinct: frozenset[str] = frozenset()


def read_target(
    datasource: DataSource,
    table: str,
    new: Sequence[tuple[str, str]] | None = None,
    keys: Sequence[str] = (),
    *,
    created_by: str = "create=True",
    gtrid: str = "",
) -> MySQLTarget:
    """As `TableDialect.read_target`. OperationalError if another transaction is creating the table."""
    parts = _NAME.fullmatch(table)
    if parts is None:
        raise ProgrammingError(f"{table!r} is not the name of a table: write table, or schema.table. Nothing was done.")

    def read() -> tuple[MySQLTarget | None, str | None, str, bool]:
        with closing(datasource.connect()) as connection:
            return _read(connection.cursor(), datasource, parts)

    found, creator, name, mariadb = Context().run(read)
    if creator not in (None, gtrid):
        if get_manager().log is not None:  # its process may be dead
            Context().run(recover, [*known().values(), datasource])
        found, creator, name, mariadb = Context().run(read)
    if creator not in (None, gtrid):
        raise OperationalError(
            f"{name} in {datasource.name} is being created by {creator}, which has not ended, or is in doubt: "
            "`txpool-recovery list` shows what is in doubt. Nothing was done, do it again later"
        )
    if found is not None:
        return found
    if new is None:
        raise ProgrammingError(
            f"there is no table {name} in {datasource.name}: name an existing table, or create it by {created_by}. "
            "Nothing was done."
        )
    columns = [_new_column(column, declared, mariadb=mariadb) for column, declared in new]
    return MySQLTarget(name, tuple(columns), (frozenset(keys),), exists=False, indexes=(frozenset(keys),))


def _read(cursor: PEP249Cursor, datasource: DataSource, parts: Any) -> tuple[MySQLTarget | None, str | None, str, bool]:
    """The table, the transaction that is creating it, its full name, and whether the server is MariaDB."""
    cursor.execute("select database(), @@lower_case_table_names, @@version")
    own, folded, version = cursor.fetchone()
    mariadb = "mariadb" in str(version).lower()
    schema, table = (None if part is None else _unquoted(part) for part in (parts[1], parts[2]))
    if folded:
        schema, table = schema and schema.lower(), str(table).lower()
    schema = schema or own
    if schema is None:
        raise ProgrammingError(f"datasource {datasource.name}: its url names no database: write schema.table.")
    name = f"{quoted(schema)}.{quoted(str(table))}"
    cursor.execute(_TABLE, [schema, table])
    found = cursor.fetchone()
    if found is None:
        return None, None, name, mariadb
    kind, engine = str(found[2]), str(found[3])
    if kind != "BASE TABLE":
        what = "a view" if "VIEW" in kind else f"a {kind.lower()}"
        raise NotSupportedError(f"{name} in {datasource.name} is {what}: name the table behind it")
    if engine.lower() != "innodb":
        raise NotSupportedError(
            f"{name} in {datasource.name} is of the engine {engine}, which has no transactions: ALTER TABLE {name} "
            "ENGINE = InnoDB"
        )
    described = _described(cursor, name, [schema, table], mariadb=mariadb)
    return described, creator_of(cursor, name), name, mariadb


def _described(cursor: PEP249Cursor, name: str, key: list[Any], *, mariadb: bool) -> MySQLTarget:
    cursor.execute(_INDEXES, key)
    indexes: dict[str, list[tuple[str | None, Any]]] = {}
    for index, column, part in cursor.fetchall():
        indexes.setdefault(index, []).append((column, part))
    json_columns: set[str] = set()
    if mariadb:
        cursor.execute(_CHECKS, key)
        checks = (_JSON_CHECK.match(str(clause)) for (clause,) in cursor.fetchall())
        json_columns = {found[1].replace("``", "`") for found in checks if found}
    cursor.execute(_COLUMNS, key)
    columns, distinct = [], set()
    for row in cursor.fetchall():
        column, is_distinct = _column(row, json_columns, mariadb=mariadb)
        columns.append(column)
        if is_distinct:
            distinct.add(column.name)
    # Of an index over an expression, or over a part of a column, equal entries do not mean equal columns.
    whole = [
        frozenset(str(column) for column, _ in index)
        for index in indexes.values()
        if all(column is not None and part is None for column, part in index)
    ]
    others = [
        frozenset(f"{column} ({part})" if part or column is None else column for column, part in index)
        for index in indexes.values()
    ]
    return MySQLTarget(name, tuple(columns), tuple(whole), indexes=tuple(others), distinct=frozenset(distinct))


def _column(row: Sequence[Any], json_columns: set[str], *, mariadb: bool) -> tuple[Column, bool]:
    """A column, and whether it has a value that no other row has if it is not written."""
    name, kind, declared, charset, collation, octets, scale, fraction, nullable, default, extra, generated = row
    kind, declared = str(kind).lower(), str(declared)
    is_json = kind == "json" or name in json_columns
    if charset is not None and collation is not None and kind not in ("json", "uuid", "inet4", "inet6"):
        declared += f" character set {charset} collate {collation}"
    if is_json and kind != "json":
        declared += f" check (json_valid({quoted(name)}))"
    if kind == "timestamp":
        declared += " null default null"
    size = {"binary": octets}.get(kind, fraction if kind in WITH_FRACTIONS else scale)
    # MariaDB writes a default of NULL as such a text.
    no_default = default is None or str(default).upper() == "NULL"
    counted = "auto_increment" in str(extra).lower()
    required = nullable == "NO" and no_default and not counted
    column = Column(
        str(name),
        declared,
        BINARY_JSON if kind == "json" else "json" if is_json else kind,
        scale=None if size is None else int(size),
        required=required,
        generated=bool(generated),
        nullable=nullable == "YES",
        labels=_labels(declared) if kind in ("enum", "set") else (),
        numbered=counted,
        signless=mariadb and kind in _FLOATS,
    )
    return column, not generated and (counted or (nullable == "YES" and no_default))


def _labels(declared: str) -> tuple[str, ...]:
    return tuple(
        _ESCAPED.sub(lambda found: _CHARACTERS.get(found[0], found[0][-1]), label) for label in _LABEL.findall(declared)
    )


def _new_column(name: str, declared: str, *, mariadb: bool) -> Column:
    kind = re.split(r"[ (]", declared, maxsplit=1)[0]
    if kind == "json" and not mariadb:
        kind = BINARY_JSON
    numbers = re.search(r"\((?:\d+,)?(\d+)\)", declared)
    scale = int(numbers[1]) if numbers and kind in ("decimal", *WITH_FRACTIONS) else None
    return Column(name, declared, kind, scale=scale, signless=mariadb and kind in _FLOATS)


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def is_independent(datasource: DataSource, target: Target) -> bool:
    """Whether the table has neither unique indexes, nor foreign keys, nor triggers that the account may see."""
    assert isinstance(target, MySQLTarget)
    parts = _NAME.fullmatch(target.name)
    if target.indexes or parts is None:
        return False
    key = [_unquoted(parts[1]), _unquoted(parts[2])]
    with closing(datasource.connect()) as connection:
        cursor = connection.cursor()
        cursor.execute(_HINDRANCES, [*key, *key])
        (found,) = cursor.fetchone()
        return not found


def require_unique(target: Target, keys: Sequence[str], names: Sequence[str]) -> None:
    """ProgrammingError if an upsert could update another row than that of the key.

    ON DUPLICATE KEY UPDATE updates the row of any unique index that has a value already. Another index does no harm if
    it contains all columns of the key, or a column that is not written and has a value of its own in each row.
    """
    if not keys:
        return
    assert isinstance(target, MySQLTarget)
    for key in keys:
        if key not in names:
            raise ProgrammingError(f"key {key!r} is not among the columns that are written: {', '.join(names)}.")
    if frozenset(keys) not in target.keys:
        raise ProgrammingError(
            f"upsert into {target.name} needs a unique index on ({', '.join(keys)}), and there is none: create one, or "
            "name the columns of an existing one. Nothing was done."
        )
    for index in target.indexes:
        if not (index >= frozenset(keys) or (index & target.distinct) - frozenset(names)):
            raise ProgrammingError(
                f"{target.name} has another unique index, on ({', '.join(sorted(index))}), and an upsert would update "
                "its row, too, whatever its key is: MariaDB and MySQL cannot be told by which index a row is found. "
                "Leave those columns out, or use mode='append'. Nothing was done."
            )


def require_privileges(
    datasource: DataSource,
    target: Target,
    names: Sequence[str],
    *,
    mode: str = "append",
    keys: Sequence[str] = (),
    strategy: str = "auto",
    stacklevel: int = 3,
) -> None:
    """ProgrammingError if the account may not write. Statements for no row tell: what a role grants counts, too.

    Creating the staging table, before the job, tells whether that is allowed.
    """
    if not target.exists:
        return
    columns, nothing = quoted_list(names), ", ".join(["null"] * len(names))
    statement = f"insert into {target.name} ({columns}) select {nothing} from dual where false"
    if mode == "upsert":
        sets = ", ".join(f"{quoted(name)} = values({quoted(name)})" for name in names if name not in keys)
        statement += f" on duplicate key update {sets or f'{quoted(keys[0])} = {quoted(keys[0])}'}"
    needed = {"insert, update" if mode == "upsert" else "insert": statement}
    if mode == "overwrite":
        needed["delete"] = f"delete from {target.name} where false"
    Context().run(_try, datasource, target, mode, needed)


def _try(datasource: DataSource, target: Target, mode: str, needed: Mapping[str, str]) -> None:
    with closing(datasource.connect()) as connection:
        cursor = connection.cursor()
        for privilege, statement in needed.items():
            try:
                cursor.execute(statement)
            except datasource.driver_adapter.module.Error as error:
                if code_of(error) in _READ_ONLY:
                    raise ProgrammingError(
                        f"{datasource.name} is read-only: {error.args[-1]}: write to its primary, through a datasource "
                        "that may write. Nothing was done."
                    ) from error
                raise ProgrammingError(
                    f"mode {mode!r} has to {privilege.replace(', ', ' and ')} in {target.name}, and the account of "
                    f"{datasource.name} may not: {error.args[-1]}: grant {privilege} on {target.name} to it. Nothing "
                    "was done."
                ) from error
        connection.rollback()
