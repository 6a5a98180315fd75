"""The tables of txpool's own in a datasource's database: records of work, and the register of staging tables.

A table has no owner here: who has created one has no more rights to it than its grants say. So whoever may write the
tables of the database may write these, and nobody else may. What an account that may only create tables can do is to
make one first: of another engine, or a view. Such a table is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from txpool.errors import OperationalError, ProgrammingError
from txpool.resources.mysql.session.protocol import Session, code_of
from txpool.resources.records import FORMAT, require_format

if TYPE_CHECKING:
    from txpool.resources.driver.raw import SqlCursor
    from txpool.resources.mysql.session.state import MySQLRawConnection

NO_TABLE: Final = 1146
INNODB: Final = "InnoDB"
MEMORY: Final = "MEMORY"
_WHY: Final = {INNODB: "whose rows commit or roll back with the work", MEMORY: "whose rows end with the server"}
#: The errors that say that a privilege is missing: on a database, a table, a column, or for a kind of statement.
DENIED: Final = frozenset({1044, 1142, 1143, 1227})


def require_database(raw: MySQLRawConnection, datasource: str) -> str:
    """The database of the session, quoted for SQL. ProgrammingError if its url names none."""
    name: str = raw.database_name
    if not name:
        raise ProgrammingError(
            f"datasource {datasource}: its url names no database, and txpool's own tables are in that: write "
            "mysql://user@host:port/database. Nothing was done"
        )
    return quoted(name)


def create_table(session: Session, name: str, columns: str, *, engine: str = INNODB) -> None:
    """Create a table in the session's database, unless it is there. A session in autocommit mode, since DDL commits.

    Errors: OperationalError for a table of that name that is of another engine; NotSupportedError for one that a later
    version has made; the server's own.
    """
    if not is_ours(session, name, engine):
        try:
            session.run(f"create table if not exists {name} ({columns}) engine = {engine} comment = '{FORMAT}'")
        except Exception as error:
            if code_of(error) in DENIED:
                error.add_note(f"txpool needs a table {name} there: let this account create tables in its database")
            raise
        is_ours(session, name, engine)


def is_ours(session: Session, name: str, engine: str = INNODB) -> bool:
    """Whether the table exists; an error if it is not as `create_table` makes it."""
    rows = session.run(
        "select table_type, engine, table_comment from information_schema.tables "
        f"where table_schema = database() and table_name = {session.quoted(name)}"
    )
    if not rows:
        return False
    kind, found, comment = (str(value) for value in rows[0])
    if kind != "BASE TABLE" or found.lower() != engine.lower():
        what = "a view" if "VIEW" in kind else f"of the engine {found}"
        raise OperationalError(
            f"{name} is {what}, and only a table of {engine} is used, {_WHY[engine]}. "
            f"Nothing was done; drop it, or rename it, and txpool creates it again"
        )
    require_format(name, comment)
    return True


def database_of(cursor: SqlCursor) -> str:
    """The database that the cursor's session began in, quoted for SQL: USE may have left it."""
    return quoted(raw_of(cursor).database_name)


def raw_of(cursor: SqlCursor) -> MySQLRawConnection:
    """The physical connection of a cursor, which may be the driver's own."""
    raw: MySQLRawConnection = getattr(cursor, "raw", cursor).connection
    return raw


def quoted(name: str) -> str:
    """A name as a quoted identifier."""
    return "`" + name.replace("`", "``") + "`"
