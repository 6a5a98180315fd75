"""The demo's folder, with a PostgreSQL server of two databases, a SQLite file, and the configuration of all three."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg

from txpool.demo.flights import FLIGHTS_SCHEMA
from txpool.demo.server import EmbeddedPostgres

_FLIGHTS = FLIGHTS_SCHEMA.replace("primary key (", "run smallint not null, primary key (run, ")
_TOTALS = "run smallint, carrier text, flights integer not null, primary key (run, carrier)"
_LEDGER = "run integer primary key, flights integer not null, at text not null default current_timestamp"


@dataclass(frozen=True, slots=True)
class Counts:
    """The number of flights of one run in each of the three databases, each read on a connection of its own."""

    flights: int
    totals: int
    ledger: int

    @property
    def agree(self) -> bool:
        return self.flights == self.totals == self.ledger


class DemoFolder:
    """The demo's folder. It has `conf/` with the files that a user would write, `ledger.db`, `txlog/`, `postgres/`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "conf"
        self.server = EmbeddedPostgres(
            folder / "postgres", databases=("flights", "totals"), settings={"max_prepared_transactions": "32"}
        )

    def build(self) -> None:
        """Start the server, write the configuration, and create the tables."""
        self.server.start()
        self._configure()
        with psycopg.connect(self.server.dsn("flights")) as flights:
            flights.execute(f"create table flights ({_FLIGHTS})")
        with psycopg.connect(self.server.dsn("totals")) as totals:
            totals.execute(f"create table totals ({_TOTALS})")
        with closing(self._ledger()) as ledger:
            ledger.execute("pragma journal_mode = wal")
            ledger.execute(f"create table ledger ({_LEDGER})")

    def count(self, run: int) -> Counts:
        """Count the flights of one run in each database, without txpool."""
        with psycopg.connect(self.server.dsn("flights")) as connection:
            flights = _one(connection.execute("select count(*) from flights where run = %s", (run,)).fetchone())
        with psycopg.connect(self.server.dsn("totals")) as connection:
            query = "select coalesce(sum(flights), 0) from totals where run = %s"
            totals = _one(connection.execute(query, (run,)).fetchone())
        with closing(self._ledger()) as file:
            query = "select coalesce(sum(flights), 0) from ledger where run = ?"
            ledger = _one(file.execute(query, (run,)).fetchone())
        return Counts(flights, totals, ledger)

    def prepared(self) -> int:
        """The number of prepared transactions in the server."""
        with psycopg.connect(self.server.dsn("flights")) as connection:
            return _one(connection.execute("select count(*) from pg_prepared_xacts").fetchone())

    def close(self) -> None:
        """Stop the server; the folder stays."""
        self.server.close()

    def _ledger(self) -> sqlite3.Connection:
        return sqlite3.connect(self.folder / "ledger.db")

    def _configure(self) -> None:
        self.conf.mkdir()
        secret = self.conf / "password"
        secret.touch(mode=0o600)
        secret.write_text(self.server.password)
        files = {
            "flights": ("driver = psycopg", "mode = xa", f"url = {self.server.url('flights')}", _PASSWORD),
            "totals": ("driver = psycopg", "mode = xa", f"url = {self.server.url('totals')}", _PASSWORD),
            "ledger": ("driver = sqlite3", "mode = cmr", "url = sqlite:///../ledger.db"),
            "txpool": ("node.name = demo", "log.url = sqlite:///../txlog"),
            "recovery": (
                "node.name = demo",
                "log.url = sqlite:///../txlog",
                "datasources = flights.properties, totals.properties, ledger.properties",
                "recovery.backoff = 0",
            ),
        }
        for name, lines in files.items():
            (self.conf / f"{name}.properties").write_text("\n".join(lines) + "\n")


_PASSWORD = "password = ${file:password}"


def _one(row: tuple[int, ...] | None) -> int:
    assert row is not None
    return row[0]
