"""The folder of a sqlite log: created durably, and refused if it is a copy, was moved, or is damaged."""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from txpool.errors import LogError, described
from txpool.log.formats import FORMAT, require
from txpool.log.sqlite import registry
from txpool.log.sqlite.owner import is_there, require_own, require_safe_place
from txpool.log.sqlite.wal import damaged
from txpool.process.durable import sync

_BUSY_TIMEOUT = 10.0  # seconds that a writer waits for another process of its node
_RESERVE_BYTES = 256 * 1024  # the reserve's size; it is deleted when the disk is full, so that forgetting has room
_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE decisions (gtrid TEXT PRIMARY KEY, branches TEXT, made REAL NOT NULL, touched INTEGER NOT NULL DEFAULT 0)
    WITHOUT ROWID;
CREATE TABLE incarnations (name TEXT PRIMARY KEY, fenced INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE TABLE finished (gtrid TEXT PRIMARY KEY, touched INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE TABLE pointers (gtrid TEXT PRIMARY KEY, datasource TEXT NOT NULL, touched INTEGER NOT NULL DEFAULT 0)
    WITHOUT ROWID;
CREATE TABLE heuristics (gtrid TEXT, bqual TEXT, datasource TEXT NOT NULL, decided TEXT NOT NULL, ended TEXT NOT NULL,
    noted REAL NOT NULL, PRIMARY KEY (gtrid, bqual)) WITHOUT ROWID;
"""
# Tables that later versions added: a log without them gets them when it is opened.
_ADDED = """
CREATE TABLE IF NOT EXISTS expired (name TEXT PRIMARY KEY, since REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS memos (kind TEXT, name TEXT, text TEXT NOT NULL, made REAL NOT NULL,
    PRIMARY KEY (kind, name)) WITHOUT ROWID;
"""


class LogFolder:
    """A folder that only its owner can use, with `log.db`, the incarnations' lock files, and the reserve."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.database = self.path / "log.db"
        self._database = str(self.database)
        self.incarnations = self.path / "incarnations"
        self._reserve = self.path / "reserve"
        self._damaged = self.path / "log.db-wal.damaged"
        self._reserve_spent = False
        #: Device and inode of the file that was verified last.
        self._verified = (0, 0)

    def create(self, node: str) -> bool:
        """Create a log durably, and return True; False if there is one.

        LogError if there was one, and its database is missing.
        """
        require_safe_place(self.path)
        created = False
        try:
            if not is_there(self.database):
                if is_there(self.incarnations):
                    raise LogError(
                        f"{self.database} is missing where a decision log was: its transactions may be in doubt. Bring "
                        f"it back; or, if none of them is prepared in any database, remove {self.path} and start anew"
                    )
                with suppress(FileExistsError):
                    self.path.mkdir(mode=0o700)
                require_own(self.path)  # if the parent is sticky, another user may have created it meanwhile
                created = self._build(node)
            # Also if it exists: the process that created it may not have synced it, or not yet.
            sync(self.path, self.path.parent)
        except (OSError, sqlite3.Error) as error:
            raise LogError(f"the decision log {self.path} cannot be created: {described(error)}") from error
        return created

    def check(self, node: str) -> None:
        """Look for damage, and create the reserve if the disk has room for it."""
        with closing(self.connect(node)) as connection:
            self._look_for_damage(connection)
            self._add_tables(connection)
        self._replenish()

    def connect(self, node: str) -> sqlite3.Connection:
        """A connection to the log; LogError if it is missing, unreadable, a copy, or another node's."""
        connection = self._open()
        try:
            _make_durable(connection)
            self._verify(connection, node)
            # The write-ahead log exists now. SQLite syncs its directory as well, but ignores an error of that.
            sync(self.path)
        except sqlite3.Error as error:
            connection.close()
            raise self._unreadable(error) from error
        except OSError as error:
            connection.close()
            raise LogError(f"the decision log {self.database} cannot be made durable: {described(error)}") from error
        except BaseException:
            connection.close()
            raise
        return connection

    def adopt(self, node: str) -> None:
        """Accept a copied or moved log as this machine's own, under this node's name; LogError while it is in use.

        Its earlier incarnations are forgotten, so that recovery leaves their branches alone. Their decisions stay for
        people to read, and so do the location notes.
        """
        require_own(self.path)
        names = [file.stem for file in self.incarnations.glob("*.lock")]
        held = [name for name in names if registry.alive(self.incarnations, name)]
        if held:
            raise LogError(
                f"the decision log {self.database} is in use by incarnation {', '.join(held)}: nothing done. "
                "End that process first"
            )
        connection = self._open()
        try:
            _make_durable(connection)
            self._look_for_damage(connection)
            self._meta(connection)
            self._add_tables(connection)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("DELETE FROM incarnations")
            connection.execute("DELETE FROM memos WHERE kind = 'incarnation' OR kind = 'timeout'")
            connection.execute("DELETE FROM expired")
            connection.execute("DELETE FROM finished")
            _set(connection, {"node": node, "log": secrets.token_hex(16)} | _identity(self.database))
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise LogError(f"the decision log {self.database} cannot be adopted: {described(error)}") from error
        finally:
            connection.close()
        for name in names:
            registry.remove(self.incarnations, name)

    def is_in_place(self) -> bool:
        """Whether the path still leads to the file that was verified last."""
        try:
            status = os.stat(self._database)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._verified

    def release_reserve(self) -> None:
        """Delete the reserve, since the disk is full."""
        self._reserve_spent = True
        with suppress(OSError):
            self._reserve.unlink()

    def has_room(self) -> bool:
        """Whether decisions may be written. Not without the reserve, whose room is for forgetting and recovery."""
        if self._reserve_spent:
            self._reserve_spent = not self._replenish()
        return not self._reserve_spent

    def _replenish(self) -> bool:
        if self._reserve.exists():
            return True
        draft = self._reserve.with_suffix(f".{secrets.token_hex(4)}")
        try:
            _write_durably(draft, bytes(_RESERVE_BYTES))
            draft.rename(self._reserve)
        except OSError:
            with suppress(OSError):
                draft.unlink()
            return False
        return True

    def _open(self) -> sqlite3.Connection:
        try:
            if not require_own(self.path):
                raise FileNotFoundError
            self._require_one_name()
            self._require_one_mount()
            size = self.database.stat().st_size
            connection = sqlite3.connect(
                f"{self.database.as_uri()}?mode=rw",
                uri=True,
                timeout=_BUSY_TIMEOUT,
                isolation_level=None,
                check_same_thread=False,
            )
        except FileNotFoundError:
            raise LogError(
                f"the decision log {self.database} is missing. An empty one would roll back what is committed, so it "
                f"is made only by `txpool-recovery init`, or with log.create = true"
            ) from None
        except (OSError, sqlite3.Error) as error:
            raise LogError(f"the decision log {self.database} cannot be opened: {described(error)}") from error
        if size == 0:
            connection.close()
            raise LogError(
                f"{self.database} is empty where a decision log was: its transactions may be in doubt. Bring it back"
            )
        return connection

    def _require_one_name(self) -> None:
        """LogError if the database has a name in another folder as well: a hard link.

        SQLite keeps the write-ahead log beside the name that it was given. Who opens the other name has another one,
        and finds none of what was decided since. In this folder there may be a draft's name, of a process that creates
        the log now, or was killed meanwhile.
        """
        before = self.database.stat()
        if before.st_nlink == 1:
            return
        names = 0
        for name in os.listdir(self.path):
            with suppress(FileNotFoundError):
                names += (self.path / name).lstat().st_ino == before.st_ino
        number = self.database.stat().st_nlink  # read last: meanwhile the draft's name may have gone
        if number > names:
            raise LogError(
                f"the decision log {self.database} has {number} names (hard links), as `cp -al` makes them: a process "
                "that opens it by another one does not see what is decided here, and two in use would end transactions "
                f"both ways. Nothing was done. `find MOUNT -xdev -samefile {self.database}` shows the others. Once no "
                "process uses any of them, remove all but the one that was in use, which is the one with a log.db-wal "
                "beside it if only one has that"
            )

    def _require_one_mount(self) -> None:
        """LogError if a part of the folder is mounted there from elsewhere, as a container's volume of one file is.

        The file is the same by all that a file tells of itself. What belongs to it, its write-ahead log and the locks
        of those who live, is in the folder that it was made in.
        """
        home = _mount(self.path)
        for part in (self.database, Path(f"{self.database}-wal"), Path(f"{self.database}-shm"), self.incarnations):
            mount = _mount(part)
            if mount is not None and mount != home:
                raise LogError(
                    f"{part} is mounted there by itself, and the rest of the decision log {self.path} is elsewhere: a "
                    f"process that opens it here sees neither what is decided there nor who lives. Nothing was done. "
                    f"Mount the folder that it comes from as a whole"
                )

    def _build(self, node: str) -> bool:
        draft = self.path / f"log.{secrets.token_hex(8)}.new"
        try:
            _write_durably(draft, b"")
            with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                _make_durable(connection)
                connection.executescript(f"BEGIN; {_SCHEMA}{_ADDED} COMMIT;")
                meta = {"format": FORMAT, "node": node, "log": secrets.token_hex(16), "full": "0"}
                _set(connection, meta | _identity(draft))
                # Last, since closing a connection in WAL mode moves the log into the database, and hides errors of it.
                # The change of mode is committed once its answer is fetched.
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":  # SQLite answers with the mode that is in force
                raise OSError("its file system has no room for a write-ahead log's shared memory")
            # Unlike a rename, a link replaces nothing, if another process has created the log meanwhile.
            try:
                os.link(draft, self.database)
            except FileExistsError:
                return False
            return True
        finally:
            for leftover in self.path.glob(f"{draft.name}*"):
                leftover.unlink()

    def _verify(self, connection: sqlite3.Connection, node: str) -> None:
        meta = self._meta(connection)
        if meta["node"] != node:
            raise LogError(
                f"the decision log {self.database} belongs to node {meta['node']!r}, and node.name is {node!r}: give "
                f"each node a log of its own"
            )
        identity = _identity(self.database)
        other = [name for name, value in identity.items() if meta[name] != value]
        if other:
            raise LogError(
                f"the decision log {self.database} is a copy or was moved: its {' and '.join(other)} "
                f"{'differ' if len(other) > 1 else 'differs'} from where it was made. Two copies in use would end "
                f"transactions both ways. Once the other is not in use any more, `txpool-recovery init --adopt` "
                f"accepts this one, and leaves all earlier branches alone"
            )
        self._verified = (int(identity["device"]), int(identity["inode"]))

    def _meta(self, connection: sqlite3.Connection) -> dict[str, str]:
        meta: dict[str, str] = dict(connection.execute("SELECT name, value FROM meta"))
        require(meta.get("format"), f"the decision log {self.database}")
        return meta

    def _add_tables(self, connection: sqlite3.Connection) -> None:
        try:
            connection.executescript(_ADDED)
        except sqlite3.Error as error:
            raise LogError(
                f"the decision log {self.database} cannot be brought up to date: {described(error)}"
            ) from error

    def _look_for_damage(self, connection: sqlite3.Connection) -> None:
        try:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if damaged(connection, self.database):
                # Renamed, since SQLite deletes it when the last connection is closed.
                Path(f"{self.database}-wal").rename(self._damaged)
                sync(self.path)
        except (OSError, sqlite3.Error) as error:
            raise self._unreadable(error) from error
        if verdict != "ok":
            raise self._unreadable(verdict)
        if self._damaged.exists():
            raise LogError(
                f"the decision log {self.database} is damaged in the middle: decisions behind the damage are missing, "
                f"and what is prepared may be committed elsewhere. What is left of them is in {self._damaged}. Finish "
                f"what is prepared by hand; once that file is removed, the log opens again"
            )

    def _unreadable(self, cause: object) -> LogError:
        return LogError(f"the decision log {self.database} is damaged, or cannot be read: {cause}")


def _make_durable(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")
    # A commit costs a half more while the WAL grows than once it is written over: let that be soon.
    connection.execute("PRAGMA wal_autocheckpoint = 200")


def _set(connection: sqlite3.Connection, meta: dict[str, str]) -> None:
    connection.executemany("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", list(meta.items()))


def _identity(database: Path) -> dict[str, str]:
    status = database.stat()
    return {"device": str(status.st_dev), "inode": str(status.st_ino), "machine": _machine()}


def _mount(path: Path) -> str | None:
    """The mount that a path lies in; None if there is no such path, or if the system does not tell.

    Only a descriptor that opens nothing may be used: if another one is closed, SQLite's locks of the file are gone.
    """
    if not hasattr(os, "O_PATH"):
        return None
    try:
        descriptor = os.open(path, os.O_PATH)
        try:
            text = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
        finally:
            os.close(descriptor)
    except OSError:
        return None
    return next((line for line in text.splitlines() if line.startswith("mnt_id:")), None)


def _machine() -> str:
    """A digest of the machine's id, which is confidential; of an empty text if the machine has none."""
    try:
        text = Path("/etc/machine-id").read_bytes()
    except OSError:
        text = b""
    return hashlib.sha256(b"txpool:" + text.strip()).hexdigest()[:32]


def _write_durably(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
