"""A PostgreSQL server that fails over: what took its place has its port, its roles and its system identifier."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import psycopg

from txpool.demo.server import EmbeddedPostgres


class FailingOver(EmbeddedPostgres):
    """A server of its own. A base backup is what a standby has that the primary's last changes have not reached."""

    def base_backup(self) -> Path:
        """All that the server has now."""
        assert self.folder is not None
        copy = self.folder / f"copy{len(list(self.folder.glob('copy*')))}"
        command: list[Any] = [self._binaries / "pg_basebackup", "-D", copy, "-d", self.dsn("postgres")]
        made = self._account.run(*command, "-X", "stream", "-c", "fast", "-N")
        assert made.returncode == 0, made.stderr
        return copy

    def fail_over(self, copy: Path) -> None:
        """The server is lost; the copy is promoted in its place, on a timeline of its own."""
        before = self.timeline
        (copy / "recovery.signal").touch()
        self._account.give(copy / "recovery.signal")
        self._take_over(copy)
        assert self.timeline != before

    def restore(self, copy: Path) -> None:
        """The server is put back to an earlier state of its own, as from a snapshot of its volume: no new timeline."""
        before = self.timeline
        self._take_over(copy)
        assert self.timeline == before

    def _take_over(self, copy: Path) -> None:
        self.stop("immediate")
        shutil.rmtree(self._data)
        copy.rename(self._data)
        self.settings["restore_command"] = "false"
        self.start()

    @property
    def timeline(self) -> str:
        with psycopg.connect(self.dsn("one"), autocommit=True) as connection:
            found = connection.execute("select left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)").fetchone()
        assert found is not None
        return str(found[0])
