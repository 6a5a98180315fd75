"""Processes with a pool each, which listen in one folder, and what a command says of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

import txpool.cli
from tests.support.children import Child, said, tell

PROLOGUE = """
import os, sys, threading
import txpool
"""
#: A process with one pool, which does what it is told.
WORKER = """
txpool.configure(sys.argv[1])
options = {"driver": "sqlite3", "mode": "local", "pool_max_size": 3}
it = txpool.DataSource(name=sys.argv[3], url=f"sqlite:///{sys.argv[2]}", **options)
held = []
say("ready", os.getpid())
while (words := heard()):
    match words[0]:
        case "take":
            try:
                held.append(it.connect(timeout=float(words[1])))
                say("taken")
            except txpool.PoolTimeout:
                say("timeout")
        case "give":
            held.pop().close()
            say("given")
        case "numbers":
            now = it.statistics()
            say(now.min_size, now.max_size, now.size, now.idle, now.suspended)
        case "fork":
            pid = os.fork()
            if pid == 0:
                say("child", os.getpid())
                if words[1] == "used":
                    it.connect().close()
                    say("used")
                heard()
                os._exit(0)
"""


Start = Callable[..., tuple[Child, int]]


def command(conf: Path, *arguments: str) -> Result:
    return CliRunner().invoke(txpool.cli.app, ["pool", *arguments, "--conf", str(conf)])


def listed(conf: Path, *arguments: str) -> list[dict[str, Any]]:
    result = command(conf, "list", "--json", *arguments)
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def sockets(conf: Path) -> list[Path]:
    return sorted((conf.parent / "control").glob("*.sock"))


def asked(child: Child, *words: str) -> list[str]:
    tell(child, *words)
    return said(child)
