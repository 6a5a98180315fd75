"""Applications, administrators and recovery in databases of PostgreSQL, in which `mallory` may plant what she likes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support import preloaded
from tests.support.planted import called
from tests.support.repository import ROOT
from tests.support.server_log import LOGGED, LoggedPostgres, Message, ServerLog
from txpool.resources.postgresql.qualified import spelled

if TYPE_CHECKING:
    from tests.support.strangers import Strangers

#: The roles whose statements count: an application, and a superuser as which recovery and administrators may work.
WATCHED = ("app", "keeper")
DATABASES = ("one", "two")
#: However it ends that has something to say.
ANY = range(40)
#: The user's own statement; what it calls is the user's.
INSERT = "insert into public.t values (1)"
_PASSWORD = "TXPOOL_TEST_PLANTED_PASSWORD"  # the name of a variable

_APPLICATION = f"""
import sys
import txpool
from txpool import failpoints

txpool.configure("txpool.properties")


def write(*names):
    for name in names:
        connection = txpool.connect(name + ".properties")
        connection.cursor().execute({INSERT!r})
        connection.close()


"""
#: Each mode, alone and with others; ends of every kind.
ALL_MODES = (
    _APPLICATION
    + """
for names in (["one"], ["marked"], ["local"], ["rows"], ["one", "two"], ["one", "rows"], ["one", "two", "marked"]):
    for _ in range(3):
        with txpool.transaction():
            write(*names)
    try:
        with txpool.transaction():
            write(*names)
            1 / 0
    except ZeroDivisionError:
        pass
with txpool.transaction():  # a reader
    txpool.connect("one.properties").cursor().execute("table public.t").fetchall()
    write("two")
for name in ("one", "marked"):
    for _ in range(2):
        try:
            with txpool.transaction(transaction_id="nightly", record_in=name + ".properties"):
                write(name)
        except txpool.AlreadyDone:
            pass
outbox = txpool.Outbox("one.properties")
outbox.create()
with txpool.transaction():
    outbox.send("told", key="k")
outbox.relay(lambda message: txpool.once(message.id, "one.properties")).deliver_all()
outbox.state(), outbox.parked(), outbox.retry()
with txpool.transaction(isolation="serializable"):
    write("one", "marked")
with txpool.transaction():
    connection = txpool.connect("joining.properties")
    connection.cursor().execute("insert into public.t values (2)")
    connection.rollback()
    connection.cursor().execute("insert into public.t values (2)")
    connection.commit()
for statement in ("set work_mem = '1MB'", "prepare it as table public.t", "listen it"):
    for name in ("one", "joining"):
        connection = txpool.connect(name + ".properties")
        connection.cursor().execute(statement)
        connection.commit()
        connection.close()
connection = txpool.connect("one.properties")
connection.tpc_begin(connection.xid(1, "theirs", "branch"))
connection.cursor().execute("insert into public.t values (3)")
connection.tpc_prepare()
connection.tpc_rollback()
connection.close()
"""
)
#: It dies, or lives on, where a failpoint says so.
CRASHES = _APPLICATION + "with txpool.transaction():\n    write(*sys.argv[1:])\n"
#: It waits for what a crash has left prepared, looks into that, and lets recovery end it.
WAITS = """
import os
import txpool

os.environ["TXPOOL_RECOVERY_BACKOFF"] = "0"
txpool.configure("txpool.properties", transaction_wait_report="100ms")
with txpool.transaction():
    txpool.connect("one.properties").cursor().execute("lock table public.t in access exclusive mode")
"""


class PlantedSite:
    """Configurations in a folder: those of `app`, and beside them those of `keeper`, a superuser, for the same."""

    def __init__(self, folder: Path, strangers: Strangers, *, fresh: bool = True) -> None:
        """`fresh`: there is a table of marks as well that is not there yet."""
        self.folder, self.strangers = folder, strangers
        server = strangers.databases.server
        self._environment = {"PYTHONPATH": str(ROOT), _PASSWORD: server.password, "COLUMNS": "250"}
        secret = f"password = ${{env:{_PASSWORD}}}"
        for role, prefix in (("app", ""), ("keeper", "keeper-")):
            one, two = (strangers.url(role, database) for database in DATABASES)
            where = f"{one}\nlog.{secret}"
            marked = f"{secret}\nmode = cmr\ncmr.batch-size = 2"
            files = {
                "one": f"{one}\n{secret}",
                "two": f"{two}\n{secret}",
                "rows": f"{two}\n{secret}\nxa.evidence = row\nxa.evidence.table = evidence",
                "marked": f"{one}\n{marked}",
                "fresh": f"{two}\n{marked}\ncmr.table = public.fresh_marks",
                "local": f"{two}\n{secret}\nmode = local",
                "joining": f"{one}\n{secret}\nmanaged.commit = join\npool.reset = always",
            }
            for name, text in files.items():
                more = "" if prefix else f"\nrecovery.user = keeper\nrecovery.{secret}"
                self._write(prefix + name, f"name = {name}\ndriver = psycopg\nurl = {text}{more}")
            names = ("one", "two", "rows", "marked", *(["fresh"] if fresh else []))
            sources = ", ".join(f"{prefix}{name}.properties" for name in names)
            self._write(f"{prefix}txpool", f"node.name = etl-1\nlog.url = {where}")
            self._write(
                f"{prefix}recovery",
                f"node.name = etl-1\nlog.url = {where}\ndatasources = {sources}\nrecovery.backoff = 0",
            )
        for database in DATABASES:
            strangers.admin(
                "create table if not exists public.t (n integer)", "grant all on public.t to public", database=database
            )

    def _write(self, name: str, text: str) -> None:
        (self.folder / f"{name}.properties").write_text(text + "\n")

    def run(self, *command: str, failpoints: str = "", exits: Iterable[int] = (0,)) -> subprocess.CompletedProcess[str]:
        done = preloaded.run(*command, cwd=self.folder, env=self._environment | {"TXPOOL_FAILPOINTS": failpoints})
        assert done.returncode in exits, f"{command}\n{done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def recovery(self, *command: str, exits: Iterable[int] = (0,), who: str = "") -> str:
        return self.run("-m", "recovery", *command, "--conf", f"{who}recovery.properties", exits=exits).stdout

    def reading(self) -> ServerLog:
        server = self.strangers.databases.server
        assert isinstance(server, LoggedPostgres)
        return ServerLog(server)

    def watch_only(self, role: str) -> None:
        """Log what a role's sessions do from now on."""
        self.strangers.admin(*(f"alter role {role} set {setting}" for setting in LOGGED))

    def watch(self, *, path: str = "") -> None:
        """Log what the watched roles' sessions do from now on; they have this search path."""
        for role in WATCHED:
            self.watch_only(role)
            if path:
                self.strangers.admin(f"alter role {role} set search_path = {path}")


def unqualified(messages: list[Message]) -> list[str]:
    """The statements of txpool's in which a name has no schema."""
    found = []
    for statement in dict.fromkeys(each.statement for each in messages if each.role in WATCHED and each.statement):
        if statement in _PLAIN:
            continue
        try:
            same = spelled(statement) == statement
        except ValueError as error:
            found.append(f"{statement}\n  {error}")
        else:
            if not same:
                found.append(statement)
    return found


#: Statements of others' making.
_PLAIN = frozenset({"listen it"})


def require_nothing_called(messages: list[Message]) -> None:
    found: Any = called(messages)
    assert not found, "\n".join(f"{number} times {text}" for text, number in found.items())
