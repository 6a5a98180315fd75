"""What to write in the place of a url of SQLAlchemy's that names a driver, as postgresql+asyncpg://app@localhost/orders."""

from __future__ import annotations

import re
from typing import Final

_WITH_DRIVER: Final = re.compile(r"(?P<database>[a-z][a-z0-9_]*)\+(?P<driver>[a-z][a-z0-9_]*):/", re.IGNORECASE)
#: How a url begins here, and the driver that it has.
_HERE: Final = {
    "postgresql": ("postgresql://", "psycopg"),
    "postgres": ("postgresql://", "psycopg"),
    "cockroachdb": ("postgresql://", "psycopg"),
    "mysql": ("mysql://", "pymysql, or mysqlclient by a file with driver = mysqlclient"),
    "mariadb": ("mariadb://", "pymysql, or mysqlclient by a file with driver = mysqlclient"),
    "sqlite": ("sqlite:///", "sqlite3"),
}
_ASYNCHRONOUS: Final = re.compile(r"a(?:io|sync)|.*(?:async|aio)", re.IGNORECASE)


def sqlalchemy_advice(text: str) -> str:
    """What to write for a url with a driver of SQLAlchemy's, as the end of an error's sentence; empty for other texts.

    It shows of the url how it begins, and nothing else.
    """
    match = _WITH_DRIVER.match(text)
    if match is None:
        return ""
    begins = f"{match['database']}+{match['driver']}:// is SQLAlchemy's, with a driver in it"
    here = _HERE.get(match["database"].lower())
    if here is None:
        return f"{begins}: here {match['database']} is reached over JDBC alone, by a file with driver = jdbc"
    blocking = ""
    if _ASYNCHRONOUS.match(match["driver"]):
        blocking = (
            "; an event loop awaits txpool.aconnect(…), SQLAlchemy's AsyncSession is over "
            f"txpool.create_async_engine(…), and a connection of {match['driver']}'s own takes no part"
        )
    return f"{begins}: write {here[0]}, and behind it the same (its driver here is {here[1]}{blocking})"
