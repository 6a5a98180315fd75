"""The commands `txpool pool …`: the pools of the running processes of a configuration that has `control.folder`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from txpool.config.settings import CoordinatorSettings
from txpool.control.client import PATIENCE, ProcessReply, ask
from txpool.control.messages import Request
from txpool.errors import ConfigurationError
from txpool.process.exit_codes import TxpoolExitCode

pools = typer.Typer(
    no_args_is_help=True,
    help="See and change the pools of running processes; their configuration has control.folder. What is changed lasts "
    "until the process ends.",
    epilog=escape(
        'JSON: [{"pid": number or null, "pools": [the fields of txpool.PoolStatistics, ...], "failures": [text, ...], '
        '"unknown": text}, ...], one for each process'
    ),
)


class How(StrEnum):
    """The modes of `flush`."""

    ALL = "all"
    IDLE = "idle"
    GRACEFUL = "graceful"


Name = Annotated[str, typer.Argument(metavar="NAME", help="The datasource's name.")]
Conf = Annotated[Path | None, typer.Option("--conf", help="The coordinator's .properties file; else as programs do.")]
Pid = Annotated[int | None, typer.Option("--pid", help="Only this process.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds that a process has for its answer.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Size = Annotated[int | None, typer.Option(min=0, max=1_000_000, help="Without it, as it is.")]

#: The columns of the table, and the numbers in them.
_COLUMNS = ("min_size", "max_size", "idle", "taken", "waiting")


@pools.command("list")
def list_pools(conf: Conf = None, pid: Pid = None, timeout: Timeout = PATIENCE, as_json: AsJson = False) -> None:
    """The pools of every process, with their numbers."""
    _run(Request("list"), conf, pid, timeout, as_json=as_json)


@pools.command()
def resize(
    name: Name,
    *,
    min_size: Size = None,
    max_size: Size = None,
    conf: Conf = None,
    pid: Pid = None,
    timeout: Timeout = PATIENCE,
    as_json: AsJson = False,
) -> None:
    """Change pool.min-size and pool.max-size."""
    _run(Request("resize", name, min_size, max_size), conf, pid, timeout, as_json=as_json)


@pools.command()
def flush(
    name: Name,
    *,
    how: Annotated[
        How,
        typer.Option(
            "--how",
            help="idle: those that are idle. graceful: also those in use, each when "
            "it comes back. all: as graceful, and statements outside transactions are cancelled.",
        ),
    ] = How.GRACEFUL,
    conf: Conf = None,
    pid: Pid = None,
    timeout: Timeout = PATIENCE,
    as_json: AsJson = False,
) -> None:
    """Close physical connections; the pool opens others if it needs them."""
    _run(Request("flush", name, how=how.value), conf, pid, timeout, as_json=as_json)


@pools.command()
def suspend(
    name: Name, conf: Conf = None, pid: Pid = None, timeout: Timeout = PATIENCE, as_json: AsJson = False
) -> None:
    """Hand out no connection until `resume`; those in use, and their transactions, go on."""
    _run(Request("suspend", name), conf, pid, timeout, as_json=as_json)


@pools.command()
def resume(
    name: Name, conf: Conf = None, pid: Pid = None, timeout: Timeout = PATIENCE, as_json: AsJson = False
) -> None:
    """End `suspend`."""
    _run(Request("resume", name), conf, pid, timeout, as_json=as_json)


def _run(request: Request, conf: Path | None, pid: int | None, timeout: float, *, as_json: bool) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    try:
        settings = CoordinatorSettings.find() if conf is None else CoordinatorSettings.load(conf)
        if settings.control_folder is None:
            raise settings.properties.error(
                "control.folder",
                "is missing, so no process listens: write control.folder = control, and start them anew",
            )
        answers = ask(settings.control_folder, request, timeout, pid=pid)
    except ConfigurationError as error:
        Console(stderr=True, highlight=False, markup=False, emoji=False).print(str(error), style="red", soft_wrap=True)
        raise typer.Exit(TxpoolExitCode.CONFIGURATION) from error
    if as_json:
        typer.echo(json.dumps([asdict(answer) for answer in answers], indent=2))
    else:
        _show(console, request, answers)
    raise typer.Exit(_exit_code(request, answers))


def _show(console: Console, request: Request, answers: Sequence[ProcessReply]) -> None:
    table = Table("pid", "pool", "state", "min", "max", *_COLUMNS[2:], box=SIMPLE_HEAD)
    for column in table.columns:
        column.no_wrap = column.header != "pool"
        column.overflow = "fold"
    for answer in answers:
        for pool in answer.pools:
            state = "closed" if pool.get("closed") else "suspended" if pool.get("suspended") else "open"
            state += "" if pool.get("enabled") else ", off"
            numbers = (str(pool.get(column, "?")) for column in _COLUMNS)
            table.add_row(str(answer.pid), str(pool.get("name")), state, *numbers)
    if table.row_count:
        console.print(table)
    elif request.pool is not None:
        console.print(f"no process that has answered has a pool {request.pool}")
    else:
        console.print("no process that has answered has a pool" if answers else "no process of this configuration runs")
    for answer in answers:
        for pool in answer.pools:
            if failure := pool.get("failure"):
                console.print(f"process {answer.pid}, {pool.get('name')}: cannot connect: {failure}", soft_wrap=True)
        for failure in answer.failures:
            console.print(f"process {answer.pid} refused: {failure}", style="red", soft_wrap=True)
        if answer.unknown:
            console.print(answer.unknown, style="yellow", soft_wrap=True)


def _exit_code(request: Request, answers: Sequence[ProcessReply]) -> TxpoolExitCode:
    if any(answer.unknown for answer in answers):
        return TxpoolExitCode.UNKNOWN
    if any(answer.failures for answer in answers):
        return TxpoolExitCode.REFUSED
    if request.pool is not None and not any(answer.pools for answer in answers):
        return TxpoolExitCode.NOT_FOUND
    return TxpoolExitCode.OK
