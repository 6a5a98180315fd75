"""What `spark.read.format("txpool")` answers: the options by which Spark's own JDBC reader reads the table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from txpool.config.settings import DataSourceSettings
from txpool.datasource import find
from txpool.errors import Error, NotSupportedError

#: By the beginning of a datasource's url: the beginning of JDBC's, the port that a url may leave out, the driver.
_JDBC: Final[Mapping[str, tuple[str, int, str]]] = {
    "postgresql": ("jdbc:postgresql", 5432, "org.postgresql.Driver"),
    "postgres": ("jdbc:postgresql", 5432, "org.postgresql.Driver"),
    "mysql": ("jdbc:mysql", 3306, "com.mysql.cj.jdbc.Driver"),
    "mariadb": ("jdbc:mariadb", 3306, "org.mariadb.jdbc.Driver"),
}


def refuse_reading(options: Mapping[str, str]) -> NotSupportedError:
    """The error for a read, with the call of `spark.read.jdbc` for the options' datasource; it has no password."""
    given = {name.lower(): value for name, value in options.items()}
    table = given.get("dbtable") or (f"({given['query']}) as q" if "query" in given else "orders")
    url, user, driver = "jdbc:postgresql://host:5432/database", "user", "org.postgresql.Driver"
    try:
        found = _jdbc(find(given["datasource"]).settings) if "datasource" in given else None
    except Error:  # the read would be refused anyway
        found = None
    url, user, driver = found or (url, user, driver)
    call = (
        f"spark.read.jdbc({json.dumps(url)}, {json.dumps(table)}, "
        f'properties={{"user": {json.dumps(user)}, "password": …, "driver": {json.dumps(driver)}}})'
    )
    return NotSupportedError(
        f"format(\"txpool\") only writes: read by Spark's own reader, {call}, with the driver's jar in spark.jars. "
        "Nothing was read"
    )


def _jdbc(settings: DataSourceSettings) -> tuple[str, str, str] | None:
    """The url, the user and the class of the driver; None for a url that has no counterpart."""
    if settings.url.startswith("sqlite:///"):
        return f"jdbc:sqlite:{settings.url.removeprefix('sqlite:///')}", "", "org.sqlite.JDBC"
    parts = urlsplit(settings.url)
    known = _JDBC.get(parts.scheme)
    if known is None or not parts.hostname:
        return None
    scheme, port, driver = known
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    user = settings.user or unquote(parts.username or "")
    return f"{scheme}://{host}:{parts.port or port}{parts.path}", user, driver
