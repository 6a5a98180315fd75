"""PEP 249's type objects over the type codes of MariaDB's and MySQL's protocol, the same for every driver.

A driver's own leave types out: PyMySQL's NUMBER has no DECIMAL, mysqlclient's no SMALLINT, and their DATETIME neither
DATE nor TIME. A column of TEXT has the code of a BLOB.
"""

from __future__ import annotations

from typing import Final

from txpool.dbapi.types import TypeCodes

_DECIMAL, _TINY, _SHORT, _LONG, _FLOAT, _DOUBLE, _LONGLONG, _INT24, _YEAR, _NEWDECIMAL = 0, 1, 2, 3, 4, 5, 8, 9, 13, 246
_TIMESTAMP, _DATE, _TIME, _DATETIME, _NEWDATE = 7, 10, 11, 12, 14
_VARCHAR, _ENUM, _SET, _VAR_STRING, _STRING = 15, 247, 248, 253, 254
_TINY_BLOB, _MEDIUM_BLOB, _LONG_BLOB, _BLOB = 249, 250, 251, 252

STRING: Final = TypeCodes({_VARCHAR, _ENUM, _SET, _VAR_STRING, _STRING})
BINARY: Final = TypeCodes({_TINY_BLOB, _MEDIUM_BLOB, _LONG_BLOB, _BLOB})
NUMBER: Final = TypeCodes({_DECIMAL, _TINY, _SHORT, _LONG, _FLOAT, _DOUBLE, _LONGLONG, _INT24, _YEAR, _NEWDECIMAL})
DATETIME: Final = TypeCodes({_TIMESTAMP, _DATE, _TIME, _DATETIME, _NEWDATE})
