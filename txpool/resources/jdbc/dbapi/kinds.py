"""How a column's values cross between Java and Python. `java/txpool/jdbc/Kind.java` has the same numbers."""

from __future__ import annotations

from typing import Final

NULL: Final = 0
LONG: Final = 1
DOUBLE: Final = 2
BOOLEAN: Final = 3
TEXT: Final = 4
BYTES: Final = 5
DECIMAL: Final = 6
INTEGER: Final = 7
DATE: Final = 8
TIME: Final = 9
DATETIME: Final = 10
UUID: Final = 11
INTERVAL: Final = 12
ARRAY: Final = 13
SMALL_BOOLEAN: Final = 14
INT: Final = 15
ZONED_TIME: Final = 16
ZONED_DATETIME: Final = 17
