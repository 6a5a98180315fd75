"""What differs with the database behind a JDBC driver."""

from __future__ import annotations

from typing import Final

from txpool.resources.jdbc.databases.database import JdbcDatabase
from txpool.resources.jdbc.databases.derby import Derby
from txpool.resources.jdbc.databases.h2 import H2
from txpool.resources.jdbc.databases.mariadb import MariaDB
from txpool.resources.jdbc.databases.other import OtherDatabase
from txpool.resources.jdbc.databases.postgresql import PostgreSQLDatabase

_KNOWN: Final[tuple[JdbcDatabase, ...]] = (PostgreSQLDatabase(), MariaDB(), H2(), Derby())
#: By what java.sql.DatabaseMetaData calls the product, in lower case.
DATABASES: Final = {product: each for each in _KNOWN for product in each.products}
OTHER: Final[JdbcDatabase] = OtherDatabase()
