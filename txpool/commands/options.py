"""The option that both commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from txpool import __version__


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"txpool {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
]
