"""A folder for tests of messages: a coordinator, its recovery, two sessions, and a SQLite file with rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import txpool
from txpool.datasource import registry


def write_files(folder: Path, node: str, sessions: Mapping[str, str], *, trusted: bool) -> None:
    """The files; the sessions are given by name, each with its lines."""
    node = f"node.name = {node}\nlog.url = sqlite:///txlog\n"
    (folder / "txpool.properties").write_text(f"{node}log.create = true\n")
    names = ", ".join(f"{name}.properties" for name in ("orders", *sessions))
    (folder / "recovery.properties").write_text(f"{node}recovery.backoff = 0\ndatasources = {names}\n")
    (folder / "orders.properties").write_text(
        "name = orders\ndriver = sqlite3\nmode = cmr\nurl = sqlite:///orders.db\n"
    )
    owners = "prepared.owners = any\n" if trusted else ""
    for name, lines in sessions.items():
        (folder / f"{name}.properties").write_text(f"name = {name}\n{lines}{owners}")


@contextmanager
def configured(folder: Path) -> Iterator[None]:
    """The working folder's coordinator, with tables in the SQLite file; at the end all that was opened is closed."""
    txpool.configure("txpool.properties")
    with closing(sqlite3.connect("orders.db")) as connection:
        connection.execute("create table done (body text)")
        connection.execute("pragma journal_mode = wal")
    file = str(folder / "orders.properties")
    registry.shared(file, lambda: txpool.DataSource.from_properties("orders.properties"))
    txpool.connect("orders.properties").close()
    registry.by_key[file].xids_table().create()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for each in registry.opened():
            each.close()
        txpool.configure()
