"""Java's exceptions as PEP 249's classes, which are also txpool's. No Java object is on them: they can be pickled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from txpool import errors as own
from txpool.resources.jdbc.jvm.jvm import entered, helper


class Error(own.Error):
    """PEP 249: the base of every error of the driver."""

    #: The database's SQLState; empty if it gives none.
    sqlstate: str = ""
    #: The database's own number; 0 if it gives none.
    vendor_code: int = 0
    #: The name of the Java class; empty if txpool itself has raised it.
    java_class: str = ""
    #: Whether no connection could be opened for it: no statement is the reason.
    at_connect: bool = False


class InterfaceError(Error, own.InterfaceError):
    """PEP 249: an error of the interface rather than of the database."""


class DatabaseError(Error, own.DatabaseError):
    """PEP 249: an error of the database."""


class DataError(DatabaseError, own.DataError):
    """PEP 249: a problem with the processed data."""


class OperationalError(DatabaseError, own.OperationalError):
    """PEP 249: an error of the database's operation, not under the programmer's control."""


class IntegrityError(DatabaseError, own.IntegrityError):
    """PEP 249: the relational integrity is affected."""


class InternalError(DatabaseError, own.InternalError):
    """PEP 249: an internal error of the database or of its driver."""


class ProgrammingError(DatabaseError, own.ProgrammingError):
    """PEP 249: a mistake of the program."""


class NotSupportedError(DatabaseError, own.NotSupportedError):
    """PEP 249: the database or its driver does not support what was asked."""


class ConnectionLost(OperationalError):
    """The connection is gone. Whether its last statement was executed is not known."""


class StatementTimeout(OperationalError):
    """The statement has taken longer than `query_timeout`, or than the database allows."""


class StatementCancelled(OperationalError):
    """The statement was cancelled, by `cancel()` or on the server."""


# By the whole SQLState; H2's are its own numbers.
_BY_STATE: Final[dict[str, type[Error]]] = {
    "57014": StatementCancelled,  # PostgreSQL, whose own time limit says so too; H2
    "XCL52": StatementTimeout,  # Derby, also for cancel()
    "HYT00": StatementTimeout,
    "57P01": ConnectionLost,
    "57P02": ConnectionLost,
    "57P03": ConnectionLost,
    "57P05": ConnectionLost,
    "90067": ConnectionLost,  # H2, and the next three
    "90098": ConnectionLost,
    "90121": ConnectionLost,
    "90108": OperationalError,
    "90012": ProgrammingError,
    "90008": DataError,
    "90051": ProgrammingError,
    "50200": OperationalError,
    "70100": StatementCancelled,  # MariaDB
    "HY008": StatementCancelled,
    "XJ004": OperationalError,  # Derby
    "XJ040": OperationalError,
    "XSDB6": OperationalError,
    "XCL13": ProgrammingError,
    "XCL47": NotSupportedError,
    "40XL1": OperationalError,
    "40XL2": OperationalError,
}
#: By SQLState's first two characters, as psycopg has it if PostgreSQL has it.
_BY_CLASS: Final[dict[str, type[Error]]] = {
    "03": ProgrammingError,
    "07": ProgrammingError,
    "08": ConnectionLost,
    "0A": NotSupportedError,
    "20": ProgrammingError,
    "21": ProgrammingError,
    "22": DataError,
    "23": IntegrityError,
    "24": ProgrammingError,
    "25": InternalError,
    "26": ProgrammingError,
    "27": OperationalError,
    "28": OperationalError,
    "2B": InternalError,
    "2D": InternalError,
    "2F": OperationalError,
    "34": ProgrammingError,
    "38": OperationalError,
    "39": OperationalError,
    "3B": OperationalError,
    "3D": ProgrammingError,
    "3F": ProgrammingError,
    "40": OperationalError,
    "42": ProgrammingError,
    "44": IntegrityError,
    "53": OperationalError,
    "54": OperationalError,
    "55": OperationalError,
    "57": OperationalError,
    "58": OperationalError,
    "HV": OperationalError,
    "P0": ProgrammingError,
    "X0": ProgrammingError,
    "XX": InternalError,
}
#: If SQLState tells nothing.
_BY_JAVA_CLASS: Final[dict[str, type[Error]]] = {
    "java.sql.SQLIntegrityConstraintViolationException": IntegrityError,
    "java.sql.SQLSyntaxErrorException": ProgrammingError,
    "java.sql.SQLDataException": DataError,
    "java.sql.DataTruncation": DataError,
    "java.sql.SQLFeatureNotSupportedException": NotSupportedError,
    "java.sql.SQLTimeoutException": StatementTimeout,
    "java.sql.SQLNonTransientConnectionException": ConnectionLost,
    "java.sql.SQLTransientConnectionException": ConnectionLost,
    "java.sql.SQLRecoverableException": ConnectionLost,
    "java.sql.SQLTransactionRollbackException": OperationalError,
    "java.sql.SQLInvalidAuthorizationSpecException": OperationalError,
    "java.sql.SQLTransientException": OperationalError,
    "java.sql.SQLNonTransientException": OperationalError,
}
#: Java's own errors that are about a value.
_ABOUT_VALUES: Final = ("java.time.", "java.lang.NumberFormatException", "java.lang.ArithmeticException")
#: How PostgreSQL's driver says that the number of parameters is wrong; its SQLState says less.
_WRONG_NUMBER: Final = ("No value specified for parameter", "The column index is out of range")
#: The errors of JMS, and of Artemis behind it.
_ABOUT_BROKERS: Final = ("jakarta.jms.", "org.apache.activemq.artemis.")
#: What Artemis's client throws, or names as the cause, if its connection has failed, or did not answer in time.
_LOST: Final = frozenset(
    f"org.apache.activemq.artemis.api.core.ActiveMQ{each}Exception"
    for each in ("ConnectionTimedOut", "UnBlocked", "NotConnected", "Disconnected", "RemoteDisconnect", "ObjectClosed")
)
_OUT_OF_MEMORY: Final = "java.lang.OutOfMemoryError"
_PARTS: Final = 5


def from_java(error: Any) -> Error:
    """A Java exception as an error of ours, with what its next exceptions and its causes say."""
    return _described([str(each) for each in helper("Failure").describe(error)])


def call(method: Callable[..., Any], *args: Any) -> Any:
    """Call a method of Java's. What that throws leaves as an error of ours."""
    entered(method)
    try:
        return method(*args)
    except _java_exception() as error:
        failure = from_java(error)
    raise failure


def _java_exception() -> type[Exception]:
    from jpype import JException

    found: type[Exception] = JException
    return found


def raise_from(failure: Error) -> NoReturn:
    """Raise it without the exception that is being handled."""
    raise failure from None


def _described(texts: Sequence[str]) -> Error:
    links = [texts[place : place + _PARTS] for place in range(0, len(texts) - 1, _PARTS)]
    # A batch's own exception says which set has failed, and its next one says why.
    batch = links[0][1] == "java.sql.BatchUpdateException"
    first = links[1] if batch and len(links) > 1 else links[0]
    name, standard, state, code, message = first
    said = [message or name]
    for _, _, _, _, further in links:
        if further and not any(further in each or each in further for each in said):
            said.append(further)
    lost = any(each[0] in _LOST for each in links)
    failure = (ConnectionLost if lost else _class(name, standard, state, message))("; ".join(said))
    failure.sqlstate = state
    failure.vendor_code = int(code)
    failure.java_class = name
    if batch and texts[-1]:
        failure.failed_set = int(texts[-1])  # type: ignore[attr-defined]
    return failure


def _class(name: str, standard: str, state: str, message: str) -> type[Error]:
    if message.startswith(_WRONG_NUMBER):
        return ProgrammingError
    found = _BY_STATE.get(state) or _BY_JAVA_CLASS.get(standard if standard in _CERTAIN else "")
    found = found or _BY_CLASS.get(state[:2]) or _BY_JAVA_CLASS.get(standard)
    if found is not None:
        return found
    if name.startswith(_ABOUT_VALUES):
        return DataError
    if name == _OUT_OF_MEMORY or name.startswith(_ABOUT_BROKERS):
        return OperationalError
    return DatabaseError if state or standard.startswith("java.sql.") else InternalError


#: Classes that tell more than SQLState does.
_CERTAIN: Final = frozenset({"java.sql.SQLTimeoutException"})
