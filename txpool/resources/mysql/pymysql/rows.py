"""PyMySQL's connection sends rows as the parameters of prepared statements, which PyMySQL itself does not know.

The server reads no text then. With MariaDB an INSERT takes about half of the processor's time; MySQL takes longer.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import pymysql
from pymysql.constants import COMMAND

from txpool.resources.mysql.bound_rows import BoundRows
from txpool.resources.mysql.pymysql.reading import WHOLE_PACKET, ReadingConnection

#: The first bytes of the answer to a PREPARE: OK, the statement's number, and how many columns and parameters it has.
_PREPARED: Final = struct.Struct("<BIHH")
#: Of an EXECUTE: the statement's number, no cursor, and that it is executed once.
_EXECUTE: Final = struct.Struct("<IBI")
_WITH_TYPES, _TYPES_AS_BEFORE = b"\1", b"\0"
_NUMBER: Final = struct.Struct("<I")
#: How many statements a session keeps prepared.
_MOST_STATEMENTS: Final = 4


class RowsConnection(ReadingConnection):
    """What `PyMySQLRawConnection` adds for rows; it counts the answers that are not read."""

    unread: int

    def __init__(self, **options: Any) -> None:
        #: The numbers of the prepared statements, and whether the server has the types of their parameters.
        self._statements: dict[bytes, tuple[int, bool]] = {}
        super().__init__(**options)

    def insert_rows(self, bound: BoundRows) -> tuple[int, int]:
        """Execute the INSERT; how many rows it has added, and how many warnings there are. The driver's errors."""
        number, typed = self._statements.get(bound.statement) or (self._prepare(bound.statement), False)
        types = _TYPES_AS_BEFORE if typed else _WITH_TYPES + bound.types
        self._statements.pop(bound.statement, None)  # an error may leave the server without the types
        self._execute_command(
            COMMAND.COM_STMT_EXECUTE, b"".join((_EXECUTE.pack(number, 0, 1), bound.nulls, types, bound.values))
        )
        try:
            affected = self._read_query_result()
        except pymysql.MySQLError:
            self._statements[bound.statement] = number, False
            raise
        self._statements[bound.statement] = number, True
        return affected, self._result.warning_count

    def _prepare(self, statement: bytes) -> int:
        while len(self._statements) >= _MOST_STATEMENTS:
            oldest, _ = self._statements.pop(next(iter(self._statements)))
            self._execute_command(COMMAND.COM_STMT_CLOSE, _NUMBER.pack(oldest))
            self.unread = 0  # the server does not answer
        self._execute_command(COMMAND.COM_STMT_PREPARE, statement)
        try:
            answer = self._read_packet()
        except pymysql.MySQLError:  # the server's answer; or the connection is lost, and was closed
            self.unread -= 1
            raise
        _, number, columns, parameters = _PREPARED.unpack_from(answer.get_all_data())
        # Each list of definitions ends with a packet of its own.
        for _ in range(sum(count + 1 for count in (columns, parameters) if count)):
            (head,) = _NUMBER.unpack(self._read_bytes(_NUMBER.size))
            self._read_bytes(head & WHOLE_PACKET)
        self.unread -= 1
        return int(number)

    def _forget_statements(self) -> None:
        """The session was reset, and the server has let go of them."""
        self._statements.clear()
