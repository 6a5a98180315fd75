"""The command `txpool`: the demo, and the check of a configuration, and the pools of running processes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from txpool.errors import ConfigurationError
from txpool.exit_codes import ExitCode
from txpool.pool_commands import pools

__all__ = ["ExitCode", "app", "main"]


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Exit codes: " + ", ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in ExitCode),
)
app.add_typer(pools, name="pool")


@app.callback()
def txpool() -> None:
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
        raise typer.Exit(ExitCode.USAGE) from error
    raise typer.Exit(ExitCode.OK if right else ExitCode.WRONG)


@app.command()
def check(
    path: Annotated[Path, typer.Argument(help="The .properties file of a datasource, a coordinator or recovery.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    old: Annotated[float, typer.Option(min=0, help="Report what has been prepared for longer, in seconds.")] = 600,
) -> None:
    """Say what is wrong with a file, its datasources for their modes, and its decision log, and what to do."""
    from txpool.check import Severity
    from txpool.check import check as examined

    # Not to the console: the findings say what is logged meanwhile.
    logging.getLogger("txpool").addHandler(logging.NullHandler())
    report = examined(path, old=old)
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
    else:
        styles = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.WRONG: "bold red"}
        console = Console(highlight=False, markup=False, emoji=False)
        for section in report.sections:
            console.print(section.subject, style="bold", soft_wrap=True)
            for finding in section.findings:
                for number, line in enumerate(finding.lines()):
                    console.print(line, style=None if number else styles[finding.severity], soft_wrap=True)
    for code, severity, topics in (
        (ExitCode.UNREACHABLE, Severity.WRONG, ["connection"]),
        (ExitCode.CONFIGURATION, Severity.WRONG, ["file"]),
        (ExitCode.WRONG, Severity.WRONG, []),
        (ExitCode.WARNING, Severity.WARNING, []),
    ):
        if report.has(severity, *topics):
            raise typer.Exit(code)


def main() -> None:
    """The entry point of the command."""
    app()
