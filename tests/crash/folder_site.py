"""A folder with the files of datasources, a log, and recovery: children play transactions in it, and may be killed."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support import preloaded

#: A child that is killed, by the code with which it ends; and what other codes say.
KILLED, COMMITTED, ROLLED_BACK, IN_DOUBT = -9, 0, 1, 2

#: Failpoints as a child arms them, whether the transaction commits with them, and what they do.
Scenario = tuple[str, bool, str]


class FolderSite:
    """The part that does not depend on the databases. `environment` is the children's."""

    folder: Path
    environment: dict[str, str]

    def play(self, orders: Sequence[tuple[int, Sequence[str], str]]) -> list[int]:
        """Transactions, each in a child of its own; how the children have ended."""
        text = "".join(f"{number}\t{'+'.join(names)}\t{points}\n" for number, names, points in orders)
        done = self.run("-m", "tests.crash.mysql_children", stdin=text)
        assert done.returncode == 0, done.stderr
        return [int(line) for line in done.stdout.split()]

    def scan(self) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "recovery", "scan", "--conf", "recovery.properties")

    def begin_scan(self) -> subprocess.Popen[str]:
        """As `scan`, beside others."""
        return subprocess.Popen(
            [sys.executable, "-m", "recovery", "scan", "--conf", "recovery.properties"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return preloaded.run(*arguments, cwd=self.folder, env=self.environment, stdin=stdin, timeout=300)

    def close(self) -> None:
        """End what it asks the databases by, until it asks again."""

    def rows(self, name: str) -> list[int]:
        raise NotImplementedError

    def marks(self) -> list[tuple[Any, ...]]:
        """All marks and tombstones."""
        raise NotImplementedError

    def prepared(self) -> list[str]:
        """What is prepared in the databases."""
        raise NotImplementedError

    def in_the_file(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "ledger.db")) as file:
            return file.execute(query).fetchall()

    def kept(self) -> dict[str, int]:
        """What the decision log keeps, table by table."""
        with closing(sqlite3.connect(self.folder / "txlog/log.db")) as log:
            tables = ("decisions", "finished", "pointers", "heuristics")
            counts = {table: log.execute(f"select count(*) from {table}").fetchone()[0] for table in tables}
        return {table: count for table, count in counts.items() if count}

    def survive(self, *groups: tuple[Sequence[str], Sequence[Scenario]]) -> dict[str, list[int]]:
        """Play scenarios, each group over its datasources, and recover once: all ends as it should; the rows."""
        played = [(names, *scenario) for names, scenarios in groups for scenario in scenarios]
        ends = self.play([(number, names, armed) for number, (names, armed, *_) in enumerate(played, 1)])
        assert len(ends) == len(played)
        assert self.prepared(), "nothing was left: the kills came too late"
        scanned = self.scan()
        assert self.prepared() == [], scanned.stdout + scanned.stderr
        assert scanned.returncode == 0, scanned.stdout + scanned.stderr
        assert "heuristic" not in scanned.stdout.lower(), scanned.stdout
        found = {name: self.rows(name) for name in {name for names, _ in groups for name in names}}
        for number, ((names, armed, committed, action), end) in enumerate(zip(played, ends, strict=True), 1):
            times = {found[name].count(number) for name in names}
            assert times in ({0}, {1}), f"{armed}: a transaction is in one database, and not in another"
            present = times == {1}
            if action == "kill":
                assert end == KILLED, f"{armed} was not reached: {end}"
                assert present is committed, armed
            elif end != IN_DOUBT:
                assert end == (COMMITTED if present else ROLLED_BACK), armed
        assert self.marks() == [], "every mark and tombstone was deleted"
        again = self.scan()
        assert again.returncode == 0, again.stdout + again.stderr
        assert self.kept() == {}
        return found
