"""Spark's own JDBC source, with which txpool is compared."""

from __future__ import annotations

import os

from tests.support.mysql import MySQLServer
from txpool.demo.server import EmbeddedPostgres

#: MariaDB's JDBC driver, which knows MySQL, too.
MARIADB_JAR = os.environ.get("MARIADB_JAR", "/usr/share/java/mariadb-java-client.jar")
#: PostgreSQL's JDBC driver.
JAR = os.environ.get("POSTGRESQL_JAR", "/usr/share/java/postgresql.jar")


def jdbc(server: EmbeddedPostgres, parameters: str = "") -> dict[str, str]:
    """The options of format("jdbc") for a server's database one; the driver's own parameters stand behind its url."""
    return {
        "url": f"jdbc:postgresql://127.0.0.1:{server.port}/one{parameters}",
        "user": server.user,
        "password": server.password,
        "driver": "org.postgresql.Driver",
    }


def mysql_jdbc(server: MySQLServer, parameters: str = "") -> dict[str, str]:
    """The same for a server of MariaDB or MySQL."""
    return {
        "url": f"jdbc:mysql://127.0.0.1:{server.port}/one{parameters}",
        "user": server.user,
        "password": server.password,
        "driver": "org.mariadb.jdbc.Driver",
    }
