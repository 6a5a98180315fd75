"""The driver's cursor: PEP 249 with parameters written as `?`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import ceil
from struct import Struct
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from txpool.resources.jdbc.dbapi import errors
from txpool.resources.jdbc.dbapi.decoding import Header, RowBatch, decode_block, decode_header
from txpool.resources.jdbc.dbapi.encoding import encode_columns
from txpool.sql.dialects import OTHER

if TYPE_CHECKING:
    from txpool.resources.jdbc.dbapi.connection import JdbcConnection

#: How many rows come with a statement's answer, and then in each block; a block also ends at 256 KiB.
_FIRST_ROWS: Final = 500
_MORE_ROWS: Final = 5000
#: How many sets of parameters go into one batch.
_BATCH: Final = 4096
_MOST_SECONDS: Final = 2_147_483
_INT: Final = Struct("<i")
_HEAD: Final = Struct("<iiib")
_TWO_INTS: Final = Struct("<ii")
_ANSWER: Final = Struct("<biqq")
_HAS_RESULT: Final = 1
_IS_OPEN: Final = 2
_HAS_KEY: Final = 4
_INSERTING: Final = ("insert", "replace")
_CLOSED: Final = "the cursor is closed"


class JdbcCursor:
    """A cursor. What its connection says of threads goes for it; its own result has one reader at a time."""

    def __init__(self, connection: JdbcConnection) -> None:
        self.connection = connection
        #: How many rows fetchmany() fetches by default.
        self.arraysize = 1
        self.closed = False
        #: The last statement.
        self.statement = ""
        self._number = 0
        self._forget()

    def _forget(self) -> None:
        """Without a result."""
        number, self._number = self._number, 0
        if number:
            self.connection.unwanted.append(number)
        #: The columns of the result, as PEP 249 has it; None if there is no result.
        self.description: tuple[tuple[Any, ...], ...] | None = None
        #: How many rows the statement has changed or produced; -1 if that is not known, as before the last row.
        self.rowcount = -1
        #: The number that the database has made for a new row; None if it has made none, or that is not told.
        self.lastrowid: int | None = None
        self._header: Header | None = None
        #: A block's header and bytes, until its rows are wanted.
        self._undecoded: tuple[Header, bytes, int] | None = None
        self._rows: list[tuple[Any, ...]] = []
        self._place = 0
        self._more = False
        self._failure: errors.Error | None = None

    # -- statements ---------------------------------------------------------------------------------------------

    def execute(self, operation: str, parameters: Sequence[Any] | None = None) -> Self:
        """Execute a statement; returns the cursor. Without parameters a `?` in it is no parameter."""
        self._require_open()
        self._forget()
        values = _checked(parameters)
        sql = _sql(operation)
        _check_number(operation, len(values))
        connection = self.connection
        wants_key = connection.gives_keys and OTHER.first_words(operation).partition(" ")[0] in _INSERTING
        pieces = [
            _HEAD.pack(self._timeout(), connection.fetch_size, _FIRST_ROWS, wants_key),
            *sql,
            _INT.pack(len(values)),
        ]
        if values:
            pieces += encode_columns([(each,) for each in values])
        self.statement = operation
        self._take(connection.answer(pieces))
        return self

    def executemany(self, operation: str, seq_of_parameters: Iterable[Sequence[Any]]) -> Self:
        """Execute a statement that returns no rows once for each set of parameters, in batches; returns the cursor."""
        self._require_open()
        self._forget()
        self.statement = operation
        begin = [_INT.pack(self._timeout()), *_sql(operation)]
        sets = iter(seq_of_parameters)
        changed = done = 0
        while batch := list(islice(sets, _BATCH)):
            columns = _columns(batch, done)
            _check_number(operation, len(columns))
            pieces = [*begin, _TWO_INTS.pack(len(batch), len(columns)), *encode_columns(columns)]
            try:
                count = self.connection.change(pieces)
            except errors.Error as error:
                _tell_set(error, done, len(batch))
                raise
            changed = -1 if count < 0 or changed < 0 else changed + count
            done += len(batch)
        self.rowcount = changed
        return self

    def nextset(self) -> bool | None:
        """Go on to the statement's next result; None if there is none."""
        self._require_open()
        number, self._number = self._number, 0
        self._forget()
        if not number:
            return None
        answer = self.connection.more("next", number, _FIRST_ROWS)
        if not answer:
            return None
        self._take(answer)
        return True

    def _take(self, answer: bytes) -> None:
        flags, number, count, key = _ANSWER.unpack_from(answer)
        if flags & _IS_OPEN:
            self._number = number
        if flags & _HAS_KEY:
            self.lastrowid = key
        if not flags & _HAS_RESULT:
            self.rowcount = count
            return
        place = _ANSWER.size
        (size,) = _INT.unpack_from(answer, place)
        place += 4
        header = decode_header(answer[place : place + size])
        place += size
        self._header = header
        self.description = header.description
        rows, self._more = _INT.unpack_from(answer, place)[0], bool(answer[place + 4])
        # They are decoded when they are fetched: a value that Python cannot hold is no failure of the statement.
        self._undecoded = header, answer, place
        if not self._more:
            self.rowcount = rows

    def _timeout(self) -> int:
        timeout = self.connection.query_timeout
        return 0 if timeout is None else max(1, min(ceil(timeout), _MOST_SECONDS))

    # -- results ------------------------------------------------------------------------------------------------

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row, or None."""
        place = self._place
        if place >= len(self._rows):
            if not self._next_block():
                return None
            place = 0
        self._place = place + 1
        return self._rows[place]

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """The next `size` rows (default `arraysize`)."""
        wanted = self.arraysize if size is None else size
        found: list[tuple[Any, ...]] = []
        while len(found) < wanted:
            if self._place >= len(self._rows) and not self._next_block():
                break
            taken = self._rows[self._place : self._place + wanted - len(found)]
            self._place += len(taken)
            found += taken
        return found

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that are left."""
        found: list[tuple[Any, ...]] = []
        while self._place < len(self._rows) or self._next_block():
            found += self._rows[self._place :] if self._place else self._rows
            self._place = len(self._rows)
        return found

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self

    def __next__(self) -> tuple[Any, ...]:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row

    def _next_block(self) -> bool:
        """Whether there is a further row; its block is at hand then."""
        self._require_open()
        while True:
            if self._failure is not None:
                raise self._failure
            if self._undecoded is not None:
                self._use(decode_block(*self._undecoded))
            elif self._header is None:
                raise errors.ProgrammingError("there is no result to fetch: the last statement has produced no rows")
            elif not self._more:
                return False
            else:
                # Until the block is there: what comes after it must not be taken for it.
                self._failure = errors.OperationalError("a fetch was interrupted, and its rows are gone: execute again")
                answer = self.connection.more("fetch", self._number, _MORE_ROWS)
                self._use(decode_block(self._header, answer, 0))
            if self._rows:
                return True

    def _use(self, block: RowBatch) -> None:
        self._rows, self._place, self._more = block.rows, 0, block.more
        self._undecoded, self._failure = None, block.failure

    def setinputsizes(self, sizes: Any) -> None:
        """Does nothing, as PEP 249 permits."""

    def setoutputsize(self, size: Any, column: Any = None) -> None:
        """Does nothing, as PEP 249 permits."""

    # -- its end ------------------------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self.closed:
            raise errors.InterfaceError(_CLOSED)
        self.connection.require_open()

    def close(self) -> None:
        """Close it. Nothing is sent: the connection's next statement closes the result."""
        if not self.closed:
            self._forget()
            self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        number = getattr(self, "_number", 0)
        if number:
            self.connection.unwanted.append(number)


def _sql(operation: str) -> tuple[bytes, bytes]:
    if not isinstance(operation, str):
        raise errors.ProgrammingError(f"a statement is a str, and not of type {type(operation).__name__}")
    try:
        data = operation.encode()
    except UnicodeEncodeError:
        raise errors.DataError("the statement has a surrogate alone, which is no character") from None
    return _INT.pack(len(data)), data


def _checked(parameters: Sequence[Any] | None) -> Sequence[Any]:
    if parameters is None:
        return ()
    if isinstance(parameters, str | bytes | Mapping) or not isinstance(parameters, Sequence):
        raise errors.ProgrammingError(
            f"parameters are a tuple or a list, one for each ?, and not of type {type(parameters).__name__}"
        )
    return parameters


def _check_number(operation: str, given: int) -> None:
    """MariaDB's driver drops parameters for which there is no `?`."""
    if given and isinstance(operation, str) and operation.count("?") < given:
        raise errors.ProgrammingError(f"{given} parameters for a statement that has {operation.count('?')} of ?")


def _columns(batch: list[Any], done: int) -> list[tuple[Any, ...]]:
    for each in batch:
        if type(each) is not tuple:
            _checked(each)
    sizes = sorted(set(map(len, batch)))
    if len(sizes) > 1:
        raise errors.ProgrammingError(
            f"the sets of parameters have different lengths, {sizes[0]} to {sizes[-1]}, among numbers {done} to "
            f"{done + len(batch) - 1}"
        )
    return list(zip(*batch, strict=True))


def _tell_set(error: errors.Error, done: int, size: int) -> None:
    """Say which set of parameters has failed, if the driver tells; else among which."""
    failed = getattr(error, "failed_set", None)
    where = f"set of parameters number {done + failed}" if failed is not None and failed < size else ""
    error.add_note(where or f"among the sets of parameters number {done} to {done + size - 1}")
