"""A WSGI server of one request at a time, and the database behind it; held to PEP 3333 with what it serves."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import txpool
from txpool.tm.ambient import current
from txpool.web.wsgi import TransactionMiddleware

OK = "200 OK"
PLAIN = [("Content-Type", "text/plain")]


class Server:
    """A server of one request at a time, and the database behind it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "one.db"
        with self.bare() as raw:
            raw.execute("create table t (n integer primary key)")
        self.datasource = txpool.DataSource(name="one", driver="sqlite3", mode="local", url=f"sqlite:///{self._path}")
        #: What the server has heard, and what the database held just then.
        self.heard: list[tuple[str, list[int]]] = []
        self.headers: list[tuple[str, str]] = []
        self.exc_info: Any = None

    def bare(self) -> Any:
        return closing(sqlite3.connect(self._path, isolation_level=None))

    @property
    def rows(self) -> list[int]:
        with self.bare() as raw:
            return [n for (n,) in raw.execute("select n from t order by n")]

    def insert(self, n: int) -> None:
        with self.datasource.connect() as connection:
            connection.cursor().execute("insert into t values (?)", (n,))

    def ask(self, app: Any, method: str = "GET", *, validated: bool = True, **environ: Any) -> tuple[str, bytes]:
        """Status and body. The middleware has made all of the body before the server asks for any."""
        environ["REQUEST_METHOD"] = method
        setup_testing_defaults(environ)
        environ["QUERY_STRING"] = ""

        def start_response(status: str, headers: Any, exc_info: Any = None, /) -> Callable[[bytes], object]:
            self.heard.append((status, self.rows))
            self.headers, self.exc_info = headers, exc_info
            return lambda chunk: None

        body: Any = (validator(app) if validated else app)(environ, start_response)
        try:
            content = b"".join(body)
        finally:
            getattr(body, "close", lambda: None)()
        assert current() is None
        return self.heard[-1][0], content

    def serve(self, app: Any, method: str = "GET", **options: Any) -> tuple[str, bytes]:
        """The same, where the application is behind the middleware, and a validator on either side of that."""
        return self.ask(TransactionMiddleware(validator(app), **options), method)
