"""An error is an instance of the driver's class and of ours, and the tree is PEP 249's."""

from __future__ import annotations

import pickle
import sqlite3

import psycopg
import pytest

from txpool import errors


def test_the_tree_is_pep_249s() -> None:
    for name in ("DataError", "OperationalError", "IntegrityError", "InternalError", "ProgrammingError"):
        assert issubclass(getattr(errors, name), errors.DatabaseError)
    assert issubclass(errors.NotSupportedError, errors.DatabaseError)
    assert issubclass(errors.DatabaseError, errors.Error)
    assert issubclass(errors.InterfaceError, errors.Error)
    assert not issubclass(errors.InterfaceError, errors.DatabaseError)
    assert issubclass(errors.Warning, Exception)
    assert not issubclass(errors.Warning, errors.Error)


def test_an_outcome_is_not_an_error_of_a_database() -> None:
    assert issubclass(errors.TransactionTimeout, errors.TransactionRolledBack)
    assert not issubclass(errors.TransactionInDoubt, errors.TransactionRolledBack)
    assert not issubclass(errors.TransactionRolledBack, errors.DatabaseError)


@pytest.mark.parametrize(
    ("driver", "ours"),
    [
        (psycopg.errors.UniqueViolation, errors.IntegrityError),
        (psycopg.errors.SerializationFailure, errors.OperationalError),
        (psycopg.errors.InvalidTextRepresentation, errors.DataError),
        (psycopg.InterfaceError, errors.InterfaceError),
        (sqlite3.IntegrityError, errors.IntegrityError),
        (sqlite3.OperationalError, errors.OperationalError),
        (sqlite3.Warning, errors.Warning),
    ],
)
def test_a_drivers_error_becomes_ours_too(driver: type[Exception], ours: type[Exception]) -> None:
    with pytest.raises(ours) as raised, errors.translated():
        raise driver("what happened")
    assert isinstance(raised.value, driver)
    assert str(raised.value) == "what happened"
    assert type(raised.value).__name__ == driver.__name__
    for other in (errors.IntegrityError, errors.OperationalError, errors.DataError):
        assert isinstance(raised.value, other) == issubclass(ours, other)


def test_a_real_one_keeps_what_the_driver_says_of_it() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("create table t (a primary key)")
    connection.execute("insert into t values (1)")
    with pytest.raises(errors.IntegrityError) as raised, errors.translated():
        connection.execute("insert into t values (1)")
    connection.close()
    assert isinstance(raised.value, sqlite3.IntegrityError)
    assert raised.value.sqlite_errorname == "SQLITE_CONSTRAINT_PRIMARYKEY"
    again = pickle.loads(pickle.dumps(raised.value))
    assert isinstance(again, sqlite3.IntegrityError)
    assert isinstance(again, errors.IntegrityError)
    assert again.sqlite_errorname == "SQLITE_CONSTRAINT_PRIMARYKEY"


def test_other_exceptions_pass_as_they_are() -> None:
    for error in (ValueError("a"), KeyboardInterrupt(), errors.IntegrityError("ours")):
        kind = type(error)
        assert type(errors.translate(error)) is kind


def test_an_outcome_travels() -> None:
    error = errors.HeuristicMixed("mixed", gtrid="txp1:n:i:1", datasource="orders")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.gtrid, again.datasource) == (
        errors.HeuristicMixed,
        "mixed",
        "txp1:n:i:1",
        "orders",
    )
