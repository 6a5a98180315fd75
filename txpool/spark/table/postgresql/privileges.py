"""Checks the database privileges of a write's user before any task runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, LiteralString

from txpool.datasource import DataSource
from txpool.errors import ProgrammingError
from txpool.resources.postgresql.qualified import qualified
from txpool.resources.postgresql.tables.staging import SCHEMA
from txpool.resources.postgresql.tables.trust import schema_faults
from txpool.spark.commit.session import SparkWriteWarning
from txpool.spark.table.target import Target
from txpool.spark.types.identifiers import quoted_list

if TYPE_CHECKING:
    from txpool.dbapi.cursor import PEP249Cursor

_USER: LiteralString = qualified("select quote_ident(current_user), current_setting('transaction_read_only') = 'on'")
# The missing privileges: on a column, or on the table if the name is NULL.
_MISSING: LiteralString = qualified(
    """
    select w.privilege, w.name
    from rows from (unnest(%(privileges)s::text[]), unnest(%(names)s::text[])) w(privilege, name)
    where not case when w.name is null then has_table_privilege(to_regclass(%(table)s), w.privilege)
        else has_column_privilege(to_regclass(%(table)s), w.name, w.privilege) end
"""
)
_SEQUENCES: LiteralString = qualified(
    """
    select s.oid::regclass::text from pg_attrdef f
        join pg_attribute a on (a.attrelid, a.attnum) = (f.adrelid, f.adnum)
        join pg_depend d on (d.classid, d.objid, d.refclassid) = ('pg_attrdef'::regclass, f.oid, 'pg_class'::regclass)
        join pg_class s on s.oid = d.refobjid
    where f.adrelid = to_regclass(%s) and a.attname <> all (%s)
        and case when s.relkind = 'S' then not has_sequence_privilege(s.oid, 'usage, update') else false end
"""
)
_STAGING: LiteralString = qualified(
    """
    select case when to_regnamespace(%(schema)s) is null then has_database_privilege(current_database(), 'create')
        else has_schema_privilege(%(schema)s, 'create') and has_schema_privilege(%(schema)s, 'usage') end
"""
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
    """ProgrammingError with the missing grant if the write would fail; a warning if it might fail.

    `names` are the columns that are written. `strategy` is that of a write_table(), or `each` for partitions that
    commit separately. With `auto` the rows may have to be staged.
    """
    warning = Context().run(_PrivilegeCheck(datasource, target, names, mode, keys, strategy).run)
    if warning is not None:
        warnings.warn(warning, SparkWriteWarning, stacklevel=stacklevel)


@dataclass(frozen=True, slots=True)
class _PrivilegeCheck:
    """The check of one write."""

    datasource: DataSource
    target: Target
    names: Sequence[str]
    mode: str
    keys: Sequence[str]
    strategy: str

    def run(self) -> str | None:
        """ProgrammingError if the write would fail; the text of a warning if it might fail, else None."""
        with closing(self.datasource.connect()) as connection:
            cursor = connection.cursor()
            user, read_only = cursor.execute(_USER).fetchone()
            if read_only:
                raise ProgrammingError(
                    f"{self.datasource.name} is read-only (transaction.read-only, default_transaction_read_only, or a "
                    "standby): write to its primary, through a datasource that may write. Nothing was done."
                )
            if self.target.row_security and self.strategy == "each":
                raise ProgrammingError(
                    f"{self.target.name} has row-level security policies, with which the user {user} cannot COPY: "
                    "atomicity='job' writes with INSERT. Nothing was done."
                )
            if self.target.exists:
                self._require_grants(cursor, user)
                self._require_sequences(cursor, user)
            (may_stage,) = cursor.execute(_STAGING, {"schema": SCHEMA}).fetchone()
            faults = schema_faults(cursor, SCHEMA)
        if (may_stage and not faults) or self.strategy not in ("staged", "auto"):
            return None
        subject = f"the user {user} of {self.datasource.name}"
        remedy = (
            f"create schema {SCHEMA} authorization {user}, or if it exists, grant create, usage on schema {SCHEMA} to "
            f"{user}"
        )
        if faults:
            remedy = f"{faults[0].found}, and txpool does not use what others control: {faults[0].do}"
        if self.strategy == "staged":
            raise ProgrammingError(
                f"{subject} may not create staging tables, which this write needs: {remedy}. Nothing was done."
            )
        return (
            f"{subject} may not create staging tables, which this write needs if the slots of "
            f"max_prepared_transactions run out, and it would fail then: {remedy}; with strategy direct it never "
            "needs them"
        )

    def _needed(self) -> Iterator[tuple[str, str | None]]:
        """The needed privileges, each with its column, or None for the table as a whole."""
        for name in self.names:
            yield "insert", name
            if self.mode == "upsert":  # ON CONFLICT reads the columns, too
                yield "select", name
                if name not in self.keys:
                    yield "update", name
        if self.mode == "overwrite":
            yield "delete", None

    def _require_grants(self, cursor: PEP249Cursor, user: str) -> None:
        privileges, columns = zip(*self._needed(), strict=True)
        parameters = {"table": self.target.name, "privileges": list(privileges), "names": list(columns)}
        missing: dict[str, list[str]] = {}
        for privilege, column in cursor.execute(_MISSING, parameters).fetchall():
            missing.setdefault(privilege, []).extend([column] if column is not None else [])
        if not missing:
            return
        grants = ", ".join(
            privilege + (f" ({quoted_list(names)})" if 0 < len(names) < privileges.count(privilege) else "")
            for privilege, names in missing.items()
        )
        raise ProgrammingError(
            f"mode {self.mode!r} has to {' and '.join(missing)} in {self.target.name}, and the user {user} of "
            f"{self.datasource.name} may not: grant {grants} on {self.target.name} to {user}. Nothing was done."
        )

    def _require_sequences(self, cursor: PEP249Cursor, user: str) -> None:
        found = cursor.execute(_SEQUENCES, [self.target.name, list(self.names)]).fetchone()
        if found is not None:
            raise ProgrammingError(
                f"a default of {self.target.name} uses the sequence {found[0]}, and the user {user} of "
                f"{self.datasource.name} may not: grant usage on sequence {found[0]} to {user}. Nothing was done."
            )
