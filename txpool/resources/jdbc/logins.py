"""How recovery reaches a datasource over JDBC that was made in code: over Python's own driver of the same database.

So the log's note names no class, and no place of classes, which recovery would load.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from txpool.config.settings.login import login_of

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings

# One host; what is behind the question mark is for the Java driver.
_URL: Final = re.compile(
    r"jdbc:(?P<kind>postgresql|mariadb)://(?P<host>\[[\w:.]+\]|[\w.-]+)(?::(?P<port>[0-9]{1,5}))?/"
    r"(?P<database>[\w$.-]+)(?:\?.*)?",
    re.ASCII | re.DOTALL,
)
#: By what follows `jdbc:`: the scheme of a login, and the port that a url need not have.
_SCHEMES: Final = {"postgresql": ("postgresql://", 5432), "mariadb": ("mysql://", 3306)}


def noted_login(settings: DataSourceSettings) -> str:
    """The login for the log's note. Empty of other databases, and if the url does not name host and database."""
    found = None if settings.file or "url" not in settings.properties else _URL.fullmatch(settings.url)
    if found is None:
        return ""
    scheme, port = _SCHEMES[found["kind"]]
    host = found["host"].strip("[]")
    return login_of(
        settings,
        scheme,
        user=settings.user or "",
        host=host,
        port=int(found["port"] or port),
        database=found["database"],
    )
