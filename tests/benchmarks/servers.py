"""The servers of a benchmark, by driver: PostgreSQL, or MariaDB."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.transactions import TABLE, open_connection
from tests.support.mysql import MySQLServer, mariadb_program
from txpool.demo.server import EmbeddedPostgres

Server = EmbeddedPostgres | MySQLServer

_POSTGRESQL = {"max_connections": "330", "max_prepared_transactions": "300"}
_MARIADB = ("--max-connections=300",)


def server_for(driver: str, databases: Sequence[str], parent: Path | None = None) -> Server:
    """A server of the driver's product with these databases, not started. Its folder will be in `parent`."""
    if driver == "psycopg":
        folder = None if parent is None else parent / f"server-{'-'.join(databases)}"
        return EmbeddedPostgres(folder, databases=databases, settings=_POSTGRESQL)
    program = mariadb_program()
    if program is None:
        sys.exit("it needs MariaDB: apt-get install mariadb-server")
    return MySQLServer(program, databases=databases, settings=_MARIADB, parent=parent)


def create_table(driver: str, server: Server, database: str) -> None:
    """Make the table in the database."""
    connection = open_connection(driver, server.url(database), server.password)
    cursor = connection.cursor()
    for statement in TABLE:
        cursor.execute(statement)
    connection.commit()
    connection.close()
