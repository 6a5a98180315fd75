"""gunicorn --preload: an application that connects while it is imported has its JVM in the process that forks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.jdbc import Jars
from tests.support.repository import ROOT

_APPLICATION = """
import os
from txpool.resources.jdbc.dbapi import errors
from txpool.resources.jdbc.jvm import jvm
from txpool.resources.jdbc.dbapi.connection import JdbcConnection

def connect():
    source = jvm.started([os.environ["JAR"]]).load("org.h2.jdbcx.JdbcDataSource")()
    source.setURL("jdbc:h2:mem:one;DB_CLOSE_DELAY=-1")
    return JdbcConnection(errors.call(source.getConnection))

if os.environ["WHEN"] == "imported":
    connect()

def application(environ, start_response):
    try:
        said = str(connect().execute("select 'done'").fetchall())
    except errors.own.InterfaceError as error:
        said = str(error)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [said.encode()]
"""


@pytest.mark.parametrize("when", ["imported", "served"])
def test_an_application_that_is_preloaded(when: str, jdbc_jars: Jars, tmp_path: Path) -> None:
    (tmp_path / "application.py").write_text(_APPLICATION)
    place = tmp_path / "socket"
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers=1", f"--bind=unix:{place}"]
    process = subprocess.Popen(
        [*command, "--no-control-socket", "--chdir", str(tmp_path), "application:application"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAR": jdbc_jars.h2[0], "WHEN": when},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        answer = _ask(place)
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(60)
    if when == "served":
        assert "[('done',)]" in answer
    else:
        assert "a forked process cannot use the JVM of its parent" in answer
        assert "With gunicorn leave out --preload" in answer
    assert status == 0, "with a JVM inside, too, it ends by SIGTERM as it always does"


def _ask(place: Path) -> str:
    until = time.monotonic() + 600
    while True:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            try:
                client.connect(str(place))
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.05)
                continue
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return client.makefile("rb").read().decode()
