"""What a write's user must be allowed to do, asked before any task runs, so that no task has to find it out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from contextvars import Context
from dataclasses import dataclass
from typing import Any, LiteralString

from txpool.datasource import DataSource
from txpool.errors import ProgrammingError
from txpool.resources.postgresql.staging import SCHEMA
from txpool.resources.postgresql.trust import schema_faults
from txpool.spark.commit.session import SparkWriteWarning
from txpool.spark.table.target import Target, listed

_USER: LiteralString = "select quote_ident(current_user), current_setting('transaction_read_only') = 'on'"
# What is wanted of the columns, and of the table as a whole where there is no column.
_MISSING: LiteralString = """
    select w.privilege, w.name from unnest(%(privileges)s::text[], %(names)s::text[]) w(privilege, name)
    where not case when w.name is null then has_table_privilege(to_regclass(%(table)s), w.privilege)
        else has_column_privilege(to_regclass(%(table)s), w.name, w.privilege) end
"""
_SEQUENCES: LiteralString = """
    select s.oid::regclass::text from pg_attrdef f
        join pg_attribute a on (a.attrelid, a.attnum) = (f.adrelid, f.adnum)
        join pg_depend d on (d.classid, d.objid, d.refclassid) = ('pg_attrdef'::regclass, f.oid, 'pg_class'::regclass)
        join pg_class s on s.oid = d.refobjid
    where f.adrelid = to_regclass(%s) and a.attname <> all (%s)
        and case s.relkind when 'S' then not has_sequence_privilege(s.oid, 'usage, update') else false end
"""
_STAGING: LiteralString = """
    select case when to_regnamespace(%(schema)s) is null then has_database_privilege(current_database(), 'create')
        else has_schema_privilege(%(schema)s, 'create') and has_schema_privilege(%(schema)s, 'usage') end
"""


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
    """ProgrammingError, which names the grant, for what would certainly fail; a warning for what may.

    `names` are the columns that are written; `strategy` is that of a write_table(), or `each` for partitions that
    commit by themselves. With `auto` the rows may have to go staged.
    """
    warning = Context().run(_PrivilegeCheck(datasource, target, names, mode, keys, strategy).look)
    if warning is not None:
        warnings.warn(warning, SparkWriteWarning, stacklevel=stacklevel)


@dataclass(frozen=True, slots=True)
class _PrivilegeCheck:
    """What a write needs."""

    datasource: DataSource
    target: Target
    names: Sequence[str]
    mode: str
    keys: Sequence[str]
    strategy: str

    def look(self) -> str | None:
        """ProgrammingError where it will not have it; a text where it may come to lack something."""
        with closing(self.datasource.connect()) as connection:
            cursor = connection.cursor()
            user, read_only = cursor.execute(_USER).fetchone()
            if read_only:
                raise ProgrammingError(
                    f"{self.datasource.name} is read-only (a standby, or default_transaction_read_only is on): write "
                    "to its primary. Nothing was done."
                )
            if self.target.row_security and self.strategy == "each":
                raise ProgrammingError(
                    f"{self.target.name} has policies for rows, past which no COPY of the user {user} goes: "
                    "atomicity='job' writes it with INSERT. Nothing was done."
                )
            if self.target.exists:
                self._require_grants(cursor, user)
                self._require_sequences(cursor, user)
            (may_stage,) = cursor.execute(_STAGING, {"schema": SCHEMA}).fetchone()
            strangers = schema_faults(cursor, SCHEMA)
        if (may_stage and not strangers) or self.strategy not in ("staged", "auto"):
            return None
        who = f"the user {user} of {self.datasource.name}"
        remedy = (
            f"create schema {SCHEMA} authorization {user}, or where it is there, grant create, usage on schema "
            f"{SCHEMA} to {user}"
        )
        if strangers:
            remedy = f"{strangers[0].found}, and what is none of ours is not used: {strangers[0].do}"
        if self.strategy == "staged":
            raise ProgrammingError(
                f"{who} may not make staging tables, which this write needs: {remedy}. Nothing was done."
            )
        return (
            f"{who} may not make staging tables, which this write needs where the slots of max_prepared_transactions "
            f"run out, and it would fail then: {remedy}; with strategy='direct' it never needs them"
        )

    def _wanted(self) -> Iterator[tuple[str, str | None]]:
        """Privileges, each with its column, or None for the table as a whole."""
        for name in self.names:
            yield "insert", name
            if self.mode == "upsert":  # which reads what it would have inserted
                yield "select", name
                if name not in self.keys:
                    yield "update", name
        if self.mode == "overwrite":
            yield "delete", None

    def _require_grants(self, cursor: Any, user: str) -> None:
        privileges, columns = zip(*self._wanted(), strict=True)
        named = {"table": self.target.name, "privileges": list(privileges), "names": list(columns)}
        lacking: dict[str, list[str]] = {}
        for privilege, column in cursor.execute(_MISSING, named).fetchall():
            lacking.setdefault(privilege, []).extend([column] if column is not None else [])
        if not lacking:
            return
        grants = ", ".join(
            privilege + (f" ({listed(those)})" if 0 < len(those) < privileges.count(privilege) else "")
            for privilege, those in lacking.items()
        )
        raise ProgrammingError(
            f"mode {self.mode!r} has to {' and '.join(lacking)} in {self.target.name}, and the user {user} of "
            f"{self.datasource.name} may not: grant {grants} on {self.target.name} to {user}. Nothing was done."
        )

    def _require_sequences(self, cursor: Any, user: str) -> None:
        found = cursor.execute(_SEQUENCES, [self.target.name, list(self.names)]).fetchone()
        if found is not None:
            raise ProgrammingError(
                f"a default of {self.target.name} counts with {found[0]}, and the user {user} of "
                f"{self.datasource.name} may not: grant usage on sequence {found[0]} to {user}. Nothing was done."
            )
