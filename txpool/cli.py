"""The command `txpool`: the demo, and a check of a datasource's configuration."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from txpool.errors import ConfigurationError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


class ExitCode(IntEnum):
    """How the command ended."""

    OK = 0
    WRONG = 1  #: a count of the demo, or something that check found
    USAGE = 2  #: the command line, or the configuration


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
    from txpool.demo.play import play

    console = Console(highlight=False, emoji=False)
    try:
        right = play(rows=rows, spark=spark, keep=keep, console=console)
    except ConfigurationError as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(ExitCode.USAGE) from error
    raise typer.Exit(ExitCode.OK if right else ExitCode.WRONG)


@app.command()
def check(path: Annotated[Path, typer.Argument(help="A datasource's .properties file.")]) -> None:
    """Load a datasource's file, connect, and say what is wrong with it for its mode."""
    from txpool.check import examine

    console = Console(highlight=False, emoji=False)
    try:
        findings = examine(path)
    except ConfigurationError as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(ExitCode.USAGE) from error
    for finding in findings:
        console.print(f"{finding.verdict}: {finding.text}", style=finding.style, markup=False)
    raise typer.Exit(ExitCode.OK if all(finding.fine for finding in findings) else ExitCode.WRONG)


def main() -> None:
    """The entry point of the command."""
    app()
