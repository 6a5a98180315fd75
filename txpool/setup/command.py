"""The command `txpool init`: asks, or takes what is passed; writes the files, makes the stores, checks all of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from txpool.config.jdbc import is_url
from txpool.errors import ConfigurationError, LogError
from txpool.process.exit_codes import TxpoolExitCode
from txpool.resource_managers import known
from txpool.setup.files import NewDataSource, node_name, with_modes, write_files

_NEXT = """\
In a program:

    import txpool

    txpool.configure("{folder}/txpool.properties")  # or set TXPOOL_CONF to that file
    with txpool.transaction():
        with txpool.connect("{folder}/{first}.properties") as connection:
            connection.cursor().execute("...")

Beside it, always: txpool-recovery run --conf {folder}/recovery.properties
"""
_REPEAT = """\
    txpool-recovery init --conf {folder}/recovery.properties    # the log and the tables that are missing
    txpool check {folder}/recovery.properties
"""


def init(
    folder: Annotated[Path, typer.Argument(help="The folder for the files; it is made.")],
    datasources: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=URL]...", help="The databases; without any, the command asks."),
    ] = None,
    node: Annotated[str | None, typer.Option(help="The coordinator's name; else one of the host's.")] = None,
    log: Annotated[str | None, typer.Option(help="The decision log's url; else a folder beside the files.")] = None,
    modes: Annotated[list[str] | None, typer.Option("--mode", metavar="NAME=MODE", help="A datasource's mode.")] = None,
) -> None:
    """Write configuration files for your databases, create the decision log and tables of marks, and check them.

    A password in a url goes into a file that only you may read; without one, the variable NAME_PASSWORD is named.
    """
    from txpool.check import check
    from txpool.check.printing import exit_code_of, print_report
    from txpool.config.settings import RecoverySettings
    from txpool.setup.stores import initialise

    console = Console(highlight=False, markup=False, emoji=False)
    try:
        chosen = [NewDataSource.parse(each) for each in datasources or ()]
        if not chosen:
            node = node or typer.prompt("The name of this coordinator, which stays the same", default=node_name())
            chosen = _ask()
        given = dict(_mode(each) for each in modes or ())
        log_url = log or f"sqlite:///{folder / 'txlog'}"
        files = write_files(folder, node or node_name(), log_url, with_modes(chosen, given))
        for file in files:
            console.print(f"wrote {file}", soft_wrap=True)
        for step in initialise(RecoverySettings.load(files[0])):
            console.print(step.text, style=None if step.done else "red", soft_wrap=True)
    except LogError as error:
        console.print(str(error), style="red", soft_wrap=True)
        console.print(
            f"\nThe files stay: mend that, then run\n\n{_REPEAT.format(folder=folder)}", soft_wrap=True, end=""
        )
        raise typer.Exit(TxpoolExitCode.CONFIGURATION) from error
    except (ConfigurationError, OSError) as error:
        console.print(str(error), style="red", soft_wrap=True)
        raise typer.Exit(TxpoolExitCode.CONFIGURATION) from error
    report = check(files[0])
    print_report(report, console)
    for section in report.sections:
        statements = dict.fromkeys(each for finding in section.findings for each in finding.statements)
        if statements:
            console.print(f"\nFor an administrator of the server of {section.subject}:\n", soft_wrap=True)
            for each in statements:
                console.print(f"    {each};", soft_wrap=True)
    console.print()
    console.print(_NEXT.format(folder=folder, first=chosen[0].name), soft_wrap=True, end="")
    code = exit_code_of(report)
    if code not in (TxpoolExitCode.OK, TxpoolExitCode.WARNING):
        console.print(
            f"\nFirst mend what is wrong above, then run\n\n{_REPEAT.format(folder=folder)}", soft_wrap=True, end=""
        )
    raise typer.Exit(code)


def _ask() -> list[NewDataSource]:
    examples = ", ".join(dict.fromkeys(manager.url_example for manager in known()))
    typer.echo(f"The databases, one after another; an empty name ends. A url is one of {examples}.")
    found: list[NewDataSource] = []
    while name := typer.prompt("Name", default="", show_default=False):
        url = typer.prompt(f"Url of {name}")
        try:
            datasource = NewDataSource.parse(f"{name}={url}")
        except ConfigurationError as error:
            typer.echo(str(error))
            continue
        if is_url(url):
            user = typer.prompt(f"User of {name} (empty: none)", default="", show_default=False)
            datasource = replace(datasource, user=user)
        if datasource.is_server and datasource.password is None:
            text = f"Password of {name} (empty: none, or ${{env:{datasource.variable}}})"
            password = typer.prompt(text, default="", show_default=False, hide_input=True)
            datasource = replace(datasource, password=password or None)
        found.append(datasource)
    if not found:
        raise ConfigurationError("no database was named: nothing was written")
    return found


def _mode(text: str) -> tuple[str, str]:
    name, _, mode = text.partition("=")
    return name, mode
