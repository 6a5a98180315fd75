"""The suites: where each is from, which of its tests run, and which are left out on both sides, with the reason."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tests.compliance.suites.sources import debian_source, sdist

#: All tests of the suites, not a choice of files.
FULL: Final = os.environ.get("TXPOOL_SUITES_FULL") == "1"
INSIDE: Final = Path(__file__).with_name("inside")

#: Patterns of test ids, and why neither side runs them.
LeftOut = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One project's tests, over one driver."""

    name: str
    driver: str
    #: The tests' folder, from a cache; raises Missing or NotThere.
    folder: Callable[[Path], Path]
    #: Files, or for Django labels: by default, and what all of it has beside them.
    tests: tuple[str, ...]
    more: tuple[str, ...] = ()
    left_out: LeftOut = field(default_factory=dict)
    #: Markers of tests that neither side runs, with the reason.
    marked_out: LeftOut = field(default_factory=dict)
    #: Patterns of test ids that only a full run has, since they take minutes.
    long: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    #: Not with txpool in the driver's place, but over the ENGINE txpool.django.
    through_engine: bool = False
    #: In an event loop: with txpool's asynchronous connections in place of the driver's.
    asynchronous: bool = False

    @property
    def id(self) -> str:
        return f"{self.name}-{self.driver}{'-engine' * self.through_engine}{'-asyncio' * self.asynchronous}"

    @property
    def shown(self) -> str:
        """The driver, for people."""
        return f"{self.driver}{', asyncio' * self.asynchronous}"

    @property
    def chosen(self) -> tuple[str, ...]:
        return self.tests + (self.more if FULL else ())

    @property
    def markers(self) -> str:
        """pytest's expression."""
        return " and ".join(f"not {marker}" for marker in self.marked_out)

    @property
    def not_run(self) -> tuple[str, ...]:
        """Patterns of test ids."""
        return (*self.left_out, *(() if FULL else self.long))


def _psycopg_tests(cache: Path) -> Path:
    checkout = os.environ.get("TXPOOL_SUITES_PSYCOPG")
    return Path(checkout) if checkout else debian_source("psycopg3", cache)


def _under_tests(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/{name}.py" for name in names)


_PSYCOPG = Suite(
    name="psycopg",
    driver="psycopg",
    folder=_psycopg_tests,
    tests=_under_tests(
        *("test_adapt", "test_capabilities", "test_column", "test_concurrency", "test_connection"),
        *("test_connection_info", "test_copy", "test_cursor", "test_cursor_client", "test_cursor_common"),
        *("test_cursor_raw", "test_cursor_server", "test_errors", "test_notify", "test_pipeline", "test_prepared"),
        *("test_psycopg_dbapi20", "test_query", "test_rows", "test_tpc", "test_transaction", "test_typeinfo"),
    ),
    more=_under_tests(
        *("test_sql", "types/test_array", "types/test_bool", "types/test_composite", "types/test_datetime"),
        *("types/test_enum", "types/test_hstore", "types/test_json", "types/test_multirange", "types/test_net"),
        *("types/test_none", "types/test_numeric", "types/test_range", "types/test_string", "types/test_uuid"),
    ),
    left_out={
        "*test_connect_error_multi_hosts*": "addresses outside this machine",
        "*test_connect_args*": "replaces the function by which psycopg opens a connection",
    },
    marked_out={
        "subprocess": "another process, where nothing stands in for the driver",
        "timing": "compares times",
        "anyio": "asyncio",
        "flakey": "may fail, psycopg says",
    },
    long=("*leak*", "*_big_size*", "*_insane_size*", "*_copy_from_to*", "*_copy_table_across*", "*test_random*"),
    # A finaliser's warning would be counted for whichever test runs then.
    options=("-p", "no:unraisableexception"),
)

_PSYCOPG_ASYNCIO = replace(
    _PSYCOPG,
    asynchronous=True,
    tests=_under_tests("test_pipeline_async", "test_tpc_async"),
    more=_under_tests(
        *("test_notify_async", "test_transaction_async"),
        *("test_concurrency_async", "test_connection_async", "test_copy_async", "test_cursor_async"),
        *("test_cursor_client_async", "test_cursor_common_async", "test_cursor_raw_async", "test_cursor_server_async"),
        "test_prepared_async",
    ),
    left_out=_PSYCOPG.left_out | {"*test_resolve_hostaddr_conn*": "replaces the function that opens a connection"},
    marked_out={name: reason for name, reason in _PSYCOPG.marked_out.items() if name != "anyio"}
    | {"refcount": "counts all objects of the process, of which the pool's threads have some"},
)

_SQLALCHEMY_LEFT_OUT = {
    "test/dialect/postgresql/test_async*": "asyncio",
    "*_asyncpg*": "another driver",
    "*InvalidateDuringResultTest_sqlite*": "wants a database in memory",
    "*test_multiple_host_real_connect*": "replaces letters of the password, which is random here",
}


def _sqlalchemy(driver: str, *more: str) -> Suite:
    return Suite(
        name="sqlalchemy",
        driver=driver,
        folder=lambda cache: sdist("sqlalchemy", cache),
        tests=("test/dialect/test_suite.py",),
        more=(*more, "test/engine/test_execute.py", "test/engine/test_transaction.py", "test/engine/test_reconnect.py"),
        left_out=_SQLALCHEMY_LEFT_OUT,
        options=("-o", "addopts=-p warnings -p logging --strict-markers", "--maxfail=1000000"),
    )


_MORE_OF_AN_ENGINE = (
    *("cache", "sessions_tests", "get_or_create", "raw_query", "force_insert_update", "fixtures", "fixtures_regress"),
    *("update", "constraints", "handlers", "async", "aggregation", "datatypes", "many_to_many", "test_client"),
    "contenttypes_tests",
)


_SQLALCHEMY_ASYNCIO = replace(
    _sqlalchemy("psycopg"),
    asynchronous=True,
    tests=("test/ext/asyncio/test_engine.py",),
    more=(
        *("test/ext/asyncio/test_cancellation.py", "test/ext/asyncio/test_session.py"),
        *("test/ext/asyncio/test_scoping.py", "test/dialect/test_suite.py"),
    ),
)


def _django(driver: str, *, through_engine: bool = False) -> Suite:
    return Suite(
        name="django",
        driver=driver,
        through_engine=through_engine,
        folder=lambda cache: sdist("django", cache),
        tests=("backends", "transactions", "transaction_hooks", "select_for_update", "multiple_database"),
        more=(
            *("schema", "migrations", "introspection", "queries", "bulk_create", "delete", "servers", "test_utils"),
            *(_MORE_OF_AN_ENGINE if through_engine else ()),
        ),
    )


SUITES: Final = (
    Suite(
        name="dbapi20",
        driver="both",
        folder=lambda _: INSIDE,
        tests=("pep249.py",),
        options=("-c", os.devnull, f"--confcutdir={INSIDE}"),
    ),
    _PSYCOPG,
    _PSYCOPG_ASYNCIO,
    _sqlalchemy("psycopg", "test/dialect/postgresql"),
    _SQLALCHEMY_ASYNCIO,
    _sqlalchemy("sqlite3", "test/dialect/sqlite"),
    _django("psycopg"),
    _django("sqlite3"),
    _django("psycopg", through_engine=True),
    _django("sqlite3", through_engine=True),
    _django("mysqlclient", through_engine=True),
)
