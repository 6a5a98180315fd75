"""The parts that a resource manager may have beside its protocol: each is an attribute, and None if it has none.

A part names code as `module:object`: that is imported when it is used first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txpool.dbapi.connection import PEP249Connection


@dataclass(frozen=True, slots=True)
class DsnPart:
    """It takes connection strings in its driver's own form, for connect()."""

    #: Whether a text that is no url is one. No I/O.
    matches: Callable[[str], bool]
    #: The url that says the same but for the password, and the password. References in it stay as they are.
    #: ConfigurationError, which shows no part of it.
    url_of: Callable[[str], tuple[str, str | None]]


@dataclass(frozen=True, slots=True)
class LogPart:
    """It can hold a decision log."""

    #: `module:Class` of the LogServer.
    server: str
    #: The beginnings of such a log's urls.
    schemes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SparkPart:
    """How Spark writes into it."""

    #: `module:Class` of the TableWrite that write_table() runs; empty if write_table() cannot write into it.
    write: str = ""
    #: `module:object` of the TableDialect by which Spark's tasks write its tables: write_table(), the format "txpool",
    #: streams; empty if tasks do not.
    tasks: str = ""
    #: If they do not, the reason, to follow the datasource's name.
    why_no_tasks: str = "is in a database that Spark's tasks do not write"
    #: Whether its server holds a limited number of prepared transactions, as `txpool.spark.commit.slots` counts them.
    counts_slots: bool = False


#: What Spark can do with a resource manager without a part for it.
NO_SPARK = SparkPart()


@dataclass(frozen=True, slots=True)
class SQLAlchemyPart:
    """SQLAlchemy can use its connections."""

    #: The beginning of SQLAlchemy's url, for create_engine().
    url: str
    #: Sets on a connection of an Engine what SQLAlchemy's dialect would have passed to the driver's connect().
    connected: Callable[[PEP249Connection, Mapping[str, Any]], None] | None = None
    #: Whether the database commits before it makes or changes a table, so that this cannot be a part of a transaction.
    commits_for_tables: bool = False
    #: Whether SQLAlchemy's dialect commits when it sets an isolation level.
    commits_for_levels: bool = False
