"""Spark's own JDBC source, with which txpool is compared."""

from __future__ import annotations

import os

from txpool.demo.server import EmbeddedPostgres

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
