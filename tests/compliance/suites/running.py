"""Runs one suite twice, each in a process of its own: on the bare driver, and with txpool in the driver's place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import sql

from tests.compliance.suites.catalogue import FULL, INSIDE, Suite
from tests.support.mysql import MySQLServer
from tests.support.repository import ROOT
from txpool.demo.server import EmbeddedPostgres

Server: TypeAlias = EmbeddedPostgres | MySQLServer

#: How long one test of a suite may take, and a whole suite, in seconds.
_TEST_SECONDS = 300 if FULL else 20
_SUITE_SECONDS = 3600 if FULL else 300

SIDES: Final = ("bare", "handle")

#: By test id: its outcome, and how it ended in a line.
Outcomes = Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Sides:
    """What came of a suite's tests on the bare driver and through the handle."""

    bare: Outcomes
    handle: Outcomes


def run(suite: Suite, folder: Path, servers: Mapping[str, Server], place: Path) -> Sides:
    """Run both sides at the same time, each on a server of its own, since a server lists what all have prepared.

    `place` is an empty folder. AssertionError where a side did not end.
    """
    with ThreadPoolExecutor(2) as sides:
        bare, handle = sides.map(lambda side: _run(suite, folder, servers[side], place, side), SIDES)
    return Sides(bare, handle)


def _run(suite: Suite, folder: Path, server: Server, place: Path, side: str) -> Outcomes:
    name = f"{suite.name}_{side}{'_engine' if suite.through_engine else ''}"
    databases = [name, f"{name}_other"]
    _create(server, databases, ("test_schema", "test_schema_2") if suite.name == "sqlalchemy" else ())
    own = place / side
    own.mkdir()
    file = own / f"{suite.name}.db"
    written = place / f"{side}.json"
    settings: dict[str, Any] = {
        "handle": side == "handle" and not suite.through_engine,
        "left_out": suite.not_run,
        "seconds": _TEST_SECONDS,
        "outcomes": str(written),
        "psycopg": "" if isinstance(server, MySQLServer) else server.dsn(name),
        "sqlite3": str(file),
    }
    command = [sys.executable, "-s"]
    if suite.name == "django":
        if side == "handle" and suite.through_engine:
            settings["database"] = _engine_database(suite.driver, server, name, file)
        else:
            settings["database"] = _django_database(suite.driver, server, name, file)
        command += [str(folder / "tests" / "runtests.py"), "--settings=txpool_django", "--parallel=1"]
        command += ["--keepdb", "--noinput", *suite.chosen]
    else:
        command += ["-m", "pytest", "-p", "txpool_outcomes", "-p", "no:xdist", "--tb=short", f"--rootdir={folder}"]
        command += ["-o", f"cache_dir={own / 'cache'}", "-m", suite.markers, *suite.options]
        command += [str(folder / each) for each in suite.chosen]
    if suite.name == "sqlalchemy":
        dialect = f"postgresql+psycopg{'_async' * suite.asynchronous}"
        url = f"{dialect}://{server.user}:{server.password}@127.0.0.1:{server.port}/{name}"
        # It takes the name apart at each underscore: a relative one is in the side's own folder.
        command += ["--dburi", url if suite.driver == "psycopg" else f"sqlite:///{file.name}"]
    path = [str(ROOT), str(INSIDE), str(folder), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PSYCOPG_TEST_DSN": str(settings["psycopg"]),
        "TXPOOL_SUITE": json.dumps(settings),
        "TXPOOL_SUITE_PASSWORD": server.password,
    }
    log = place / f"{side}.log"
    with log.open("wb") as output:
        subprocess.run(
            command,
            cwd=own,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=_SUITE_SECONDS,
            check=False,
        )
    assert written.exists(), f"{suite.id}, {side}: the suite did not run\n" + log.read_text(errors="replace")[-4000:]
    return {test: (outcome, how) for test, (outcome, how) in json.loads(written.read_text()).items()}


def _create(server: Server, databases: list[str], schemas: tuple[str, ...]) -> None:
    if isinstance(server, MySQLServer):
        for database in databases:
            server.execute(f"drop database if exists {database}", f"create database {database} charset utf8mb4")
        return
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
        for database in databases:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(database)))
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(database)))
    with psycopg.connect(server.dsn(databases[0]), autocommit=True) as connection:
        for schema in schemas:
            connection.execute(sql.SQL("create schema {}").format(sql.Identifier(schema)))


def _django_database(driver: str, server: Server, name: str, file: Path) -> dict[str, Any]:
    if driver == "sqlite3":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(file)}
    return {
        "ENGINE": f"django.db.backends.{'postgresql' if driver == 'psycopg' else 'mysql'}",
        "NAME": name,
        "USER": server.user,
        "PASSWORD": server.password,
        "HOST": "127.0.0.1",
        "PORT": server.port,
    }


def _engine_database(driver: str, server: Server, name: str, file: Path) -> dict[str, Any]:
    """The same over datasources, whose files, and the coordinator's, lie beside the file.

    Of SQLite's files only one can be in a transaction: the other alias has Django's own engine.
    """
    (file.parent / "txpool.properties").write_text("node.name = suite\nlog.url = sqlite:///txlog\nlog.create = true\n")
    for each in (name,) if driver == "sqlite3" else (name, f"{name}_other"):
        if driver == "sqlite3":
            where = f"mode = local\nurl = sqlite:///{file.with_name(each)}.db"
        else:
            where = f"url = {server.url(each)}\npassword = ${{env:TXPOOL_SUITE_PASSWORD}}"
        (file.parent / f"{each}.properties").write_text(f"driver = {driver}\npool.max-size = 40\n{where}\n")
    return {"ENGINE": "txpool.django", "NAME": str(file.with_name(name)), "SUFFIX": ".properties"}
