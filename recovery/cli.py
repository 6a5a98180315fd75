"""The command `txpool-recovery`: the daemon, one scan, what is in doubt, and what an operator may do about it."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from recovery import daemon, setup
from recovery.listing import InDoubt
from recovery.manager import RecoveryManager
from recovery.report import ScanReport
from txpool.errors import ConfigurationError, Error, LogError, ProgrammingError
from txpool.settings import RecoverySettings


class ExitCode(IntEnum):
    """How the command ended. The highest that applies, but for OK."""

    OK = 0
    IN_DOUBT = 1  #: something is in doubt, and does not end by itself
    USAGE = 2  #: the command line is wrong
    CONFIGURATION = 3  #: the configuration is wrong; nothing was done
    LOG = 4  #: the decision log is missing, damaged or another node's; nothing was done
    UNREACHABLE = 5  #: a datasource did not answer; what it holds stays as it is
    REFUSED = 6  #: what was asked for is not safe, or makes no sense; nothing was done
    HEURISTIC = 7  #: a branch has ended otherwise than it was decided
    FAILED = 8  #: a step failed, and the others went on
    INTERRUPTED = 130  #: by Ctrl-C; what was begun is finished by the next scan


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Exit codes: " + ", ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in ExitCode),
)
Conf = Annotated[Path, typer.Option("--conf", help="The recovery manager's .properties file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Gtrid = Annotated[str, typer.Argument(metavar="GTRID")]
_CONF = Path("conf/recovery.properties")


@app.callback()
def recovery() -> None:
    """Finish what crashes have left prepared, and see what is in doubt."""
    # Made anew for each command, so that it writes to the stderr of this moment.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("txpool")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)


@app.command()
def run(conf: Conf = _CONF) -> None:
    """Scan again and again, until SIGTERM or SIGINT; SIGHUP reads the configuration again."""
    with _told():
        daemon.run(conf)


@app.command()
def scan(conf: Conf = _CONF, as_json: AsJson = False) -> None:
    """One scan, now."""
    with _managed(conf) as manager:
        report = manager.scan()
    _print_report(report, as_json)
    raise typer.Exit(_code(report))


@app.command("list")
def list_(conf: Conf = _CONF, as_json: AsJson = False) -> None:
    """What is in doubt, and what recovery will do with it; nothing is written."""
    with _managed(conf) as manager:
        found = manager.in_doubt()
    if as_json:
        _print_json([each.as_dict() for each in found])
    elif found:
        _console().print(_table(found))
    else:
        _console().print("Nothing is in doubt, as far as the datasources have answered.")
    raise typer.Exit(_code_of(found))


@app.command()
def show(gtrid: Gtrid, conf: Conf = _CONF, as_json: AsJson = False) -> None:
    """All that is known of one transaction."""
    with _managed(conf) as manager:
        found = manager.show(gtrid)
        if found is None:
            raise ProgrammingError(f"nothing is known of {gtrid}")
    if as_json:
        _print_json(found.as_dict())
    else:
        _console().print(_details(found))
    raise typer.Exit(_code_of([found]))


@app.command()
def commit(gtrid: Gtrid, conf: Conf = _CONF, yes: Yes = False, as_json: AsJson = False) -> None:
    """Commit now what is decided to commit; refused where it is not."""
    _act(conf, yes, as_json, f"Commit {gtrid} where it is decided?", lambda manager: manager.commit(gtrid))


@app.command()
def rollback(gtrid: Gtrid, conf: Conf = _CONF, yes: Yes = False, as_json: AsJson = False) -> None:
    """Make sure that nobody commits it, and roll it back; refused where it is decided to commit."""
    _act(conf, yes, as_json, f"Roll {gtrid} back, for ever?", lambda manager: manager.rollback(gtrid))


@app.command()
def forget(gtrid: Gtrid, conf: Conf = _CONF, yes: Yes = False) -> None:
    """Dismiss a transaction's heuristic outcomes, once they are repaired."""
    with _managed(conf) as manager:
        _confirm(yes, f"Forget the heuristic outcomes of {gtrid}?")
        count = manager.forget(gtrid)
        if not count:
            raise ProgrammingError(f"no heuristic outcome of {gtrid} is kept: nothing was done")
    _console().print(f"{count} forgotten")


@app.command()
def init(
    conf: Conf = _CONF,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Accept a copied or moved log; all its earlier branches are left alone.")
    ] = False,
) -> None:
    """Create the decision log, and the tables of marks that are missing."""
    console = _console()
    with _told():
        steps = setup.initialise(RecoverySettings.load(conf), adopt=adopt)
        for step in steps:
            console.print(step.text, style=None if step.done else "red", soft_wrap=True)
    raise typer.Exit(ExitCode.OK if all(step.done for step in steps) else ExitCode.UNREACHABLE)


def main() -> None:
    """The entry point of the command."""
    app()


# -- their parts --------------------------------------------------------------------------------------------------


def _console(*, stderr: bool = False) -> Console:
    # A gid has colons around its datasource's name, which may be the name of an emoji.
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


@contextmanager
def _told() -> Iterator[None]:
    """An error that is for people is one line, and an exit code."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise typer.Exit(ExitCode.INTERRUPTED) from error
    except Error as error:
        codes = {ConfigurationError: ExitCode.CONFIGURATION, LogError: ExitCode.LOG, ProgrammingError: ExitCode.REFUSED}
        found = (code for kind, code in codes.items() if isinstance(error, kind))
        _console(stderr=True).print(str(error), style="red", soft_wrap=True)
        raise typer.Exit(next(found, ExitCode.FAILED)) from error


@contextmanager
def _managed(conf: Path) -> Iterator[RecoveryManager]:
    with _told(), closing(RecoveryManager(conf)) as manager:
        yield manager


def _act(conf: Path, yes: bool, as_json: bool, question: str, act: Callable[[RecoveryManager], ScanReport]) -> None:
    with _managed(conf) as manager:
        _confirm(yes, question)
        report = act(manager)
    _print_report(report, as_json)
    raise typer.Exit(_code(report))


def _confirm(yes: bool, question: str) -> None:
    """Exits where the answer is no, or where there is nobody to give one."""
    try:
        if yes or typer.confirm(question, err=True):
            return
    except typer.Abort:
        typer.echo("Nobody has confirmed it: use --yes. Nothing was done.", err=True)
    raise typer.Exit(ExitCode.REFUSED)


def _code(report: ScanReport) -> ExitCode:
    applies = {
        ExitCode.IN_DOUBT: report.pending,
        ExitCode.UNREACHABLE: report.unreachable,
        ExitCode.HEURISTIC: report.heuristics,
        ExitCode.FAILED: report.errors,
    }
    return max((code for code, found in applies.items() if found), default=ExitCode.OK)


def _code_of(found: list[InDoubt]) -> ExitCode:
    if any(each.heuristics for each in found):
        return ExitCode.HEURISTIC
    return ExitCode.IN_DOUBT if any(each.attention for each in found) else ExitCode.OK


def _print_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=2))


def _print_report(report: ScanReport, as_json: bool) -> None:
    if as_json:
        _print_json(report.as_dict())
        return
    console = _console()
    rows = [("committed", e.gid, e.datasource, e.why) for e in report.committed]
    rows += [("rolled back", e.gid, e.datasource, e.why) for e in report.rolled_back]
    rows += [("left alone", e.gid or e.gtrid, e.datasource, e.reason) for e in report.left_alone]
    rows += [
        ("heuristic", h.gtrid, h.datasource, f"decided to {h.decided}, ended {h.ended}") for h in report.heuristics
    ]
    rows += [("no answer", "", name, reason) for name, reason in report.unreachable.items()]
    rows += [("failed", step, "", reason) for step, reason in report.errors.items()]
    if rows:
        table = Table("what", "branch", "datasource", "why")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    console.print(str(report))


def _table(found: list[InDoubt]) -> Table:
    table = Table("gtrid", "process", "age", "decision", "branches", "next")
    for each in found:
        branches = "\n".join(f"{branch.datasource}: {branch.state}" for branch in each.branches)
        table.add_row(each.gtrid, each.standing, _age(each.age), _decision(each), branches, _next(each))
    return table


def _details(each: InDoubt) -> Table:
    table = Table(show_header=False)
    table.add_row("gtrid", each.gtrid)
    table.add_row("node", each.node)
    table.add_row("incarnation", f"{each.incarnation}: {each.standing}")
    table.add_row("age", _age(each.age))
    table.add_row("decision", _decision(each))
    for branch in each.branches:
        table.add_row("branch", f"{branch.gid} in {branch.datasource}: {branch.state}")
    for heuristic in each.heuristics:
        ended = f"decided to {heuristic.decided}, ended {heuristic.ended}"
        table.add_row("heuristic", f"{heuristic.bqual} in {heuristic.datasource}: {ended}")
    table.add_row("next", _next(each))
    return table


def _decision(each: InDoubt) -> str:
    return f"{each.decision}, in {each.kept}" if each.kept else each.decision


def _next(each: InDoubt) -> str:
    return f"{each.next}; repair by hand, then forget" if each.heuristics else each.next


def _age(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
