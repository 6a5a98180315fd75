"""A handle beside a bare connection of its driver's: the same names, and after close() the same errors."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import txpool.errors
from txpool.datasource import DataSource
from txpool.tm.ambient import current
from txpool.tm.demarcation.calls import begin, commit, rollback

if TYPE_CHECKING:
    from tests.conftest import Databases

# What PEP 249 leaves to the driver, and names of drivers that neither of these two is.
OPTIONAL = {"callproc", "nextset", "lastrowid", "rownumber", "scroll", "next", "messages", "errorhandler"}
OPTIONAL |= {
    "tpc_begin",
    "tpc_prepare",
    "tpc_commit",
    "tpc_rollback",
    "tpc_recover",
    "xid",
    "autocommit",
    "set_session",
}
# What a handle has beyond its driver's connection: what users have of it, and what this package has.
BEYOND = {"closed", "datasource", "paramstyle"}

CALLS: dict[str, tuple[Any, ...]] = {
    "execute": ("select 1",),
    "executemany": ("select 1", []),
    "executescript": ("select 1",),
    "fetchmany": (2,),
    "copy": ("copy (select 1) to stdout",),
    "stream": ("select 1",),
    "scroll": (0,),
    "set_result": (0,),
    "setinputsizes": ([],),
    "setoutputsize": (1,),
    "add_notice_handler": (print,),
    "remove_notice_handler": (print,),
    "add_notify_handler": (print,),
    "remove_notify_handler": (print,),
    "set_autocommit": (True,),
    "set_isolation_level": (None,),
    "set_read_only": (None,),
    "set_deferrable": (None,),
    "tpc_begin": ("x",),
    "wait": ((each for each in ()),),
    "xid": (1, "a", "b"),
    "backup": (sqlite3.connect(":memory:", check_same_thread=False),),
    "blobopen": ("t", "v", 1),
    "create_aggregate": ("f", 1, None),
    "create_collation": ("f", None),
    "create_function": ("f", 1, None),
    "create_window_function": ("f", 1, None),
    "deserialize": (b"",),
    "enable_load_extension": (False,),
    "getlimit": (1,),
    "setlimit": (1, 1),
    "load_extension": ("f",),
    "set_authorizer": (None,),
    "set_progress_handler": (None, 1),
    "set_trace_callback": (None,),
}
# Where the driver raises, and a handle does not, or otherwise.
OTHERWISE = {
    (sqlite3.Cursor, "close"): "a program that cleans up may close a cursor after its connection",
    (psycopg.ServerCursor, "executemany"): "it is not supported, but the connection is closed, too",
}


@pytest.fixture(params=["psycopg", "sqlite3"])
def datasource(request: pytest.FixtureRequest) -> DataSource:
    found: DataSource = request.getfixturevalue(
        {"psycopg": "postgres_source", "sqlite3": "sqlite_source"}[request.param]
    )
    return found


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    if current() is not None:
        rollback()


@pytest.fixture
def bare(datasource: DataSource, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    connection: Any
    if datasource.driver == "psycopg":
        databases: Databases = request.getfixturevalue("databases")
        connection = psycopg.connect(databases.dsn("one"))
    else:
        connection = sqlite3.connect(tmp_path / "one.db")
    yield connection
    connection.close()


@pytest.fixture(params=["plain", "enlisted"])
def handle(request: pytest.FixtureRequest, datasource: DataSource) -> Iterator[Any]:
    if request.param == "enlisted":
        begin()
    connection = datasource.connect()
    yield connection
    connection.close()


def public(it: Any) -> set[str]:
    """Its names, those that may be read or not: dir() of a handle has its driver's, too."""
    return {name for name in dir(it) if not name.startswith("_")}


def names(it: Any, asked: set[str]) -> set[str]:
    return {name for name in asked if hasattr(it, name)}


def test_names_of_connections(bare: Any, handle: Any) -> None:
    asked = public(psycopg.Connection) | public(sqlite3.Connection) | public(bare) | OPTIONAL
    asked |= {"__enter__", "__exit__"}
    assert names(handle, asked) - BEYOND == names(bare, asked) - BEYOND


@pytest.mark.parametrize("executed", [False, True])
def test_names_of_cursors(bare: Any, handle: Any, *, executed: bool) -> None:
    asked = public(psycopg.Cursor) | public(psycopg.ServerCursor) | public(sqlite3.Cursor) | OPTIONAL
    asked |= {"__enter__", "__exit__", "__iter__", "__next__", "itersize", "callfunc"}
    pairs = [(bare.cursor(), handle.cursor())]
    if isinstance(bare, psycopg.Connection):
        pairs.append((bare.cursor("b"), handle.cursor("h")))
    for theirs, ours in pairs:
        if executed:
            theirs.execute("select 1")
            ours.execute("select 1")
        with_ours = names(ours, asked)
        if isinstance(theirs, sqlite3.Cursor):
            with_ours -= {"__enter__", "__exit__"}  # beyond sqlite3's
        assert with_ours == names(theirs, asked)
        theirs.close()
        ours.close()


def test_classes_of_errors(bare: Any, handle: Any) -> None:
    for name in ("Warning", "Error", "InterfaceError", "DatabaseError", "DataError", "OperationalError"):
        assert getattr(handle, name) is getattr(txpool.errors, name)
    raised = []
    for connection in (bare, handle):
        with pytest.raises(connection.Error) as caught:
            connection.cursor().execute("select nonsense")
        raised.append(caught.value)
    assert isinstance(raised[1], type(raised[0]))


def outcome(it: Any, name: str) -> BaseException | None:
    """What it raises when this name is read, and where it is a method, called, entered and advanced."""
    try:
        found = getattr(it, name)
        if callable(found) and not isinstance(found, type) and not name.endswith(("_factory", "connection")):
            found = found(*CALLS.get(name, ()))
        if isinstance(found, GeneratorType):
            next(found)
        elif isinstance(found, AbstractContextManager) and name in ("copy", "pipeline", "transaction"):
            found.__enter__()
    except StopIteration:
        return None
    except Exception as error:
        return error
    return None


def differences(theirs: Any, ours: Any) -> Iterator[tuple[str, object, object]]:
    for name in sorted(public(type(theirs)) | public(theirs), key=lambda name: (name == "close", name)):
        if (type(theirs), name) in OTHERWISE:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # notifies() beside a listener
            expected, raised = outcome(theirs, name), outcome(ours, name)
        if expected is None or not isinstance(raised, type(expected)):
            if expected is not raised:
                yield name, expected, raised
        elif isinstance(expected, psycopg.Error | sqlite3.Error):
            kind = next(each.__name__ for each in type(expected).__mro__ if hasattr(txpool.errors, each.__name__))
            if not isinstance(raised, getattr(txpool.errors, kind)):
                yield name, expected, raised


def make_cursors(connection: Any) -> list[Any]:
    """One that has executed nothing, one with a result, one that is closed; and on PostgreSQL two server-side ones."""
    cursors = [connection.cursor(), connection.cursor(), connection.cursor()]
    cursors[1].execute("select 1 union select 2")
    cursors[2].close()
    with suppress(TypeError):
        cursors += [connection.cursor("unused"), connection.cursor("far")]
        cursors[4].execute("select generate_series(1, 3)")
    return cursors


@pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning")
@pytest.mark.parametrize("how", ["closed", "closed while enlisted", "its transaction ended"])
def test_after_close(datasource: DataSource, bare: Any, how: str) -> None:
    if how != "closed":
        begin()
    handle: Any = datasource.connect()
    theirs, ours = make_cursors(bare), make_cursors(handle)
    bare.close()
    if how != "its transaction ended":
        handle.close()
    if how != "closed":
        commit()
    assert handle.closed
    assert list(differences(bare, handle)) == []
    for left, right in zip(theirs, ours, strict=True):
        assert list(differences(left, right)) == []
    with pytest.raises(txpool.errors.Error, match=r"closed|has ended") as caught:
        handle.cursor()
    expected = {"psycopg": psycopg.OperationalError, "sqlite3": sqlite3.ProgrammingError}[datasource.driver]
    assert isinstance(caught.value, expected)
    handle.close()
    for cursor in ours:
        cursor.close()


def test_closed_and_set(datasource: DataSource, bare: Any) -> None:
    handle: Any = datasource.connect()
    for connection in (bare, handle):
        connection.close()
        connection.row_factory = print
        assert connection.row_factory is print
        if datasource.driver == "psycopg":
            connection.cursor_factory = psycopg.ClientCursor
            with pytest.raises(psycopg.OperationalError):
                connection.autocommit = True
            with connection as entered:
                assert entered is connection
            assert (connection.closed, connection.broken, connection.autocommit) == (True, False, False)
        else:
            with pytest.raises(sqlite3.ProgrammingError):
                connection.isolation_level = None
            with pytest.raises(sqlite3.ProgrammingError):
                connection.__enter__()
    assert datasource.statistics().taken == 0


def test_a_closed_cursor_stays_closed_in_a_transaction(datasource: DataSource) -> None:
    handle: Any = datasource.connect()
    cursor = handle.cursor()
    cursor.close()
    expected = {"psycopg": psycopg.InterfaceError, "sqlite3": sqlite3.ProgrammingError}[datasource.driver]
    for joined in (False, True):
        if joined:
            begin()
        for use in (lambda: cursor.execute("select 1"), cursor.fetchone):
            with pytest.raises(expected) as caught:
                use()  # type: ignore[no-untyped-call]
            assert isinstance(caught.value, txpool.errors.Error)
    handle.close()


def left_with(block: Any) -> BaseException | None:
    try:
        block.__exit__(None, None, None)
    except Exception as error:
        return error
    return None


@pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning")
@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("block", [False, True])
def test_after_the_server_went(postgres_source: DataSource, databases: Databases, *, seen: bool, block: bool) -> None:
    bare, handle = psycopg.connect(databases.dsn("one")), postgres_source.connect()
    blocks = [bare.transaction(), handle.transaction()]
    if block:
        for each in blocks:
            each.__enter__()
    theirs, ours = make_cursors(bare), make_cursors(handle)
    for connection in (bare, handle):
        databases.rows("two", "select pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
        if seen:
            with pytest.raises(psycopg.OperationalError):  # as Django's is_usable() asks
                connection.execute("select 1")
            assert (connection.closed, connection.broken) == (True, True)
    if block:
        left: list[Any] = [left_with(each) for each in blocks]
        assert isinstance(left[1], type(left[0]))
    assert list(differences(bare, handle)) == []
    for left, right in zip(theirs, ours, strict=True):
        assert list(differences(left, right)) == []
    handle.close()
    with postgres_source.connect() as other:
        assert other.execute("select 1").fetchone() == (1,)
