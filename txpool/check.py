"""What is wrong with a datasource for its mode: asked of the database itself, one finding a line."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg

from txpool.datasource import DataSource
from txpool.errors import Error
from txpool.resources.base import MarkedRow
from txpool.secret import redact

_STYLES = {"right": "green", "note": "yellow", "wrong": "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: `verdict` is right, note or wrong."""

    verdict: str
    text: str

    @property
    def fine(self) -> bool:
        return self.verdict != "wrong"

    @property
    def style(self) -> str:
        return _STYLES[self.verdict]


def examine(path: Path) -> list[Finding]:
    """Look at a datasource from its file on. Errors: ConfigurationError where the file itself is wrong."""
    datasource = DataSource.from_properties(path)
    try:
        return [Finding("right", f"{path} is well-formed: {datasource!r}"), *_connected(datasource)]
    finally:
        datasource.close()


def _connected(datasource: DataSource) -> list[Finding]:
    try:
        with closing(datasource.connect()) as connection:
            found = [Finding("right", "connected, with the user and password of the file")]
            if isinstance(connection, psycopg.Connection):
                found += _postgresql(connection, datasource.mode)
        if datasource.mode == "cmr":
            found.append(_marked(datasource))
    except Error as error:
        return [Finding("wrong", redact(str(error).strip(), datasource.settings.secrets))]
    return found


def _postgresql(connection: psycopg.Connection[tuple[str, ...]], mode: str) -> list[Finding]:
    def ask(query: str) -> str:
        rows = connection.execute(query.encode()).fetchall()
        return str(rows[0][0])

    found = [Finding("right", f"PostgreSQL {ask('show server_version')}, database {ask('select current_database()')}")]
    if mode == "xa":
        found.append(
            _slots(int(ask("show max_prepared_transactions")), int(ask("select count(*) from pg_prepared_xacts")))
        )
    for setting, danger in (
        ("fsync", "a power loss can lose what was committed, and tear transactions"),
        ("full_page_writes", "a power loss can damage pages"),
    ):
        if ask(f"show {setting}") == "off":
            found.append(Finding("wrong", f"{setting} is off: {danger}. Set it to on."))
    if ask("show synchronous_commit") == "off":
        found.append(
            Finding("note", "synchronous_commit is off for this user: txpool turns it on where a decision needs it")
        )
    return found


def _slots(maximum: int, used: int) -> Finding:
    if maximum == 0:
        return Finding(
            "wrong",
            "max_prepared_transactions is 0, so this server cannot prepare: set it (100, say) in postgresql.conf and "
            "restart, or use mode=cmr",
        )
    if used >= maximum:
        return Finding("wrong", f"all {maximum} prepared-transaction slots are taken: see pg_prepared_xacts")
    return Finding("right", f"{maximum - used} of {maximum} prepared-transaction slots are free")


def _marked(datasource: DataSource) -> Finding:
    rows: list[MarkedRow] = datasource.xids_table().read()
    return Finding("right", f"table {datasource.settings.cmr_table} is there, with {len(rows)} marks")
