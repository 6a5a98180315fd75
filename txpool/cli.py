"""The command `txpool`: the demo, the check of a configuration, outboxes, the pools of running processes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from txpool.commands.consume import consume
from txpool.commands.options import Version
from txpool.commands.outbox import outboxes
from txpool.commands.pool import pools
from txpool.errors import ConfigurationError
from txpool.process.exit_codes import TxpoolExitCode
from txpool.process.printing import print_plainly
from txpool.setup.command import init

__all__ = ["TxpoolExitCode", "Version", "app", "main"]


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Exit codes: " + ", ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in TxpoolExitCode),
)
app.command()(init)
app.command()(consume)
app.add_typer(outboxes, name="outbox")
app.add_typer(pools, name="pool")


@app.callback()
def txpool(*, version: Version = False) -> None:
    """Atomic work over several databases from Python and Spark."""


@app.command()
def demo(
    rows: Annotated[int | None, typer.Option(min=1, help="Use only the first N flights.")] = None,
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="Write from Spark's tasks.")] = True,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the server's data too.")] = False,
) -> None:
    """Write real data into three databases in one transaction; fail, be killed, recover; show that nothing is torn."""
    from txpool.demo.scenarios import run_scenarios

    console = Console(highlight=False, emoji=False)
    try:
        right = run_scenarios(rows=rows, spark=spark, keep=keep, console=console)
    except ConfigurationError as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(TxpoolExitCode.USAGE) from error
    raise typer.Exit(TxpoolExitCode.OK if right else TxpoolExitCode.WRONG)


@app.command()
def check(
    path: Annotated[Path, typer.Argument(help="The .properties file of a datasource, a coordinator or recovery.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    old: Annotated[float, typer.Option(min=0, help="Report what has been prepared for longer, in seconds.")] = 600,
    conformance: Annotated[
        bool, typer.Option("--conformance", help="Prove the resource manager on its database, in tables of its own.")
    ] = False,
    kill_command: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="With --conformance: kills the server, at once.")
    ] = None,
    start_command: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="With --conformance: starts the server again.")
    ] = None,
    patience: Annotated[float, typer.Option(min=1, help="With --conformance: seconds until a branch must end.")] = 30,
) -> None:
    """Say what is wrong with a file, its datasources for their modes, and its decision log, and what to do.

    With --conformance, run the cases of the conformance kit against each datasource instead.
    """
    if conformance:
        raise typer.Exit(_run_conformance(path, as_json, kill_command, start_command, patience))
    if kill_command is not None or start_command is not None:
        raise typer.BadParameter("--kill-command and --start-command are for --conformance")
    from txpool.check import check as examined
    from txpool.check.printing import exit_code_of, print_report

    # Not to the console: the findings say what is logged meanwhile.
    logging.getLogger("txpool").addHandler(logging.NullHandler())
    report = examined(path, old=old)
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
    else:
        print_report(report, Console(highlight=False, markup=False, emoji=False))
    raise typer.Exit(exit_code_of(report))


def _run_conformance(path: Path, as_json: bool, kill: str | None, start: str | None, patience: float) -> TxpoolExitCode:
    from txpool.conformance.command import exit_code, run_file
    from txpool.conformance.report import as_dict, print_table

    console = Console(highlight=False, markup=False, emoji=False)
    try:
        runs = run_file(
            path, kill_command=kill, start_command=start, patience=patience, console=None if as_json else console
        )
    except ConfigurationError as error:
        typer.echo(str(error), err=True)
        return TxpoolExitCode.CONFIGURATION
    if as_json:
        typer.echo(json.dumps(as_dict(runs), indent=2))
    else:
        print_table(console, runs)
    return exit_code(runs)


def main() -> None:
    """The entry point of the command."""
    print_plainly()
    app()
