"""The command `txpool-recovery`: the daemon, one scan, the lists of what is in doubt, and the commands by hand."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recovery.manager import RecoveryManager
from recovery.operator import display, streams
from recovery.operator.audit import AuditEntry
from recovery.operator.listing import InDoubt
from recovery.operator.schema import shape
from recovery.operator.suspension import Suspension
from recovery.plain import command_of
from recovery.scan.modules.expiry import Expired, node_of
from recovery.scan.outboxes import OutboxStatus
from recovery.scan.report import AlarmKind, ScanReport
from txpool.commands.options import Version
from txpool.config.settings import RecoverySettings
from txpool.errors import ConfigurationError, Error, LogError, ProgrammingError
from txpool.process.printing import print_plainly
from txpool.setup.stores import Step, initialise

if TYPE_CHECKING:
    from rich.console import Console


class ExitCode(IntEnum):
    """How the command ended. If several apply, it is the highest; FOREIGN only if no other applies."""

    OK = 0
    IN_DOUBT = 1  #: something is in doubt, and no living process ends it: `list` says what it waits for
    USAGE = 2  #: the command line is wrong
    CONFIGURATION = 3  #: the configuration is wrong; nothing was done
    LOG = 4  #: the decision log is missing, damaged or another node's; nothing was done
    UNREACHABLE = 5  #: a datasource did not answer; its branches stay as they are
    REFUSED = 6  #: the command is not safe now, or makes no sense; nothing was done
    HEURISTIC = 7  #: a branch has ended otherwise than it was decided
    FAILED = 8  #: a step failed; the others went on
    SLOTS = 9  #: a server has few prepared slots left, by alarm.slots
    OVERDUE = 10  #: something has been in doubt for longer than alarm.in-doubt, or than its living process may take
    UNCONFIGURED = 11  #: a node of ours prepares in a database that is not configured
    FOREIGN = 12  #: somebody else has prepared under the name of a process of ours; it changes no outcome
    INTERRUPTED = 130  #: by Ctrl-C; the next scan finishes what was begun


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Exit codes: " + ", ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in ExitCode),
)
Conf = Annotated[Path, typer.Option("--conf", help="The recovery manager's .properties file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; the log keeps it with who and when.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Gtrid = Annotated[str, typer.Argument(metavar="GTRID")]
_CONF = Path("conf/recovery.properties")


def _shape(kind: Any) -> str:
    """The shape of its JSON, in which a help's markup takes no bracket for its own."""
    return re.sub(r"\[(?=[a-z])", r"\\[", shape(kind))


def _json(kind: Any) -> str:
    """The end of a command's help: the shape of its JSON."""
    return f"JSON: {_shape(kind)}"


@app.callback()
def recovery(*, version: Version = False) -> None:
    """Finish the transactions that crashes have left, and show what is in doubt."""
    # The handler is made anew for each command, so that it writes to the current stderr.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("txpool")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)


@app.command()
def run(conf: Conf = _CONF) -> None:
    """Scan again and again, until SIGTERM or SIGINT; SIGHUP reads the configuration again."""
    with _errors_as_exit_codes():
        from recovery.service import daemon  # it imports an HTTP server

        daemon.run(conf)


@app.command(epilog=_json(ScanReport))
def scan(conf: Conf = _CONF, as_json: AsJson = False) -> None:
    """Make one scan now; refused while recovery is suspended."""
    with _opened_manager(conf) as manager:
        report = manager.scan()
    _print_report(report, as_json)


@app.command(
    "list",
    epilog=f"{_json(list[InDoubt])} With --expired: {_shape(list[Expired])} "
    f"With --outboxes: {_shape(list[OutboxStatus])}",
)
def list_(
    conf: Conf = _CONF,
    as_json: AsJson = False,
    *,
    only_expired: Annotated[bool, typer.Option("--expired", help="Show what has expired instead.")] = False,
    only_outboxes: Annotated[bool, typer.Option("--outboxes", help="Show only the outboxes.")] = False,
    node: Annotated[str, typer.Option(help="Show only the transactions of this node.")] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="Show only so many transactions.")] = None,
) -> None:
    """Show what is in doubt, what recovery will do with it, and the outboxes; nothing is written."""
    if only_outboxes:
        _list_outboxes(conf, as_json)
        return
    with _opened_manager(conf) as manager:
        _print_suspension(manager)
        all_expired = manager.expired()
        found: Iterator[InDoubt] = iter(()) if only_expired else manager.each_in_doubt()
        outboxes = () if only_expired or as_json else manager.outboxes()
        _print_missing(manager)
    if node:
        found = (each for each in found if each.node == node)
        all_expired = [each for each in all_expired if node_of(each) == node]
    unresolved = [each for each in all_expired if each.heuristics]
    listed = streams.Counted(found, limit)
    if as_json:
        streams.write_array(all_expired if only_expired else listed)
    elif only_expired:
        _print(display.format_expired(all_expired) or "Nothing has expired.")
    else:
        nothing = "Nothing is in doubt, as far as the datasources have answered."
        streams.write_texts(map(display.format_short, listed), nothing)
        if outboxes:
            _print(display.format_outboxes(outboxes))
    if listed.left_out:
        typer.echo(f"{listed.left_out} more of {listed.count} are not shown (--limit {limit})", err=True)
    if unresolved and not only_expired:
        typer.echo(f"heuristic outcomes that have expired unresolved: {len(unresolved)} (list --expired)", err=True)
    raise typer.Exit(
        ExitCode.HEURISTIC if unresolved else _exit_code_of_listing(listed.heuristic, listed.attention, manager)
    )


def _list_outboxes(conf: Path, as_json: bool) -> None:
    with _opened_manager(conf) as manager:
        found = manager.outboxes()
    _print([asdict(each) for each in found] if as_json else display.format_outboxes(found) or "There is no outbox.")
    raise typer.Exit(ExitCode.UNREACHABLE if any(each.reason for each in found) else ExitCode.OK)


@app.command(epilog=_json(InDoubt))
def show(gtrid: Gtrid, conf: Conf = _CONF, as_json: AsJson = False) -> None:
    """Show all that is known of one transaction."""
    with _opened_manager(conf) as manager:
        _print_suspension(manager)
        found = manager.show(gtrid)
        _print_missing(manager)
        if found is None:
            raise ProgrammingError(
                f"nothing is known of {gtrid}, as far as the datasources have answered: it has ended and is forgotten, "
                "or this log has never known it"
            )
    _print(found.as_dict() if as_json else display.format_transaction(found))
    raise typer.Exit(_exit_code_of_listing(bool(found.heuristics), found.attention, manager))


@app.command(epilog=_json(ScanReport))
def commit(gtrid: Gtrid, conf: Conf = _CONF, yes: Yes = False, reason: Reason = "", as_json: AsJson = False) -> None:
    """Commit a transaction now that is decided to commit; refused if it is not."""
    question = f"Commit {gtrid}, if it is decided?"
    _print_report(_end_by_hand(conf, gtrid, yes, question, lambda manager: manager.commit(gtrid, reason)), as_json)


@app.command(epilog=_json(ScanReport))
def rollback(gtrid: Gtrid, conf: Conf = _CONF, yes: Yes = False, reason: Reason = "", as_json: AsJson = False) -> None:
    """Make a commit of a transaction impossible, and roll it back; refused if it is decided to commit."""
    question = f"Roll {gtrid} back for ever?"
    _print_report(_end_by_hand(conf, gtrid, yes, question, lambda manager: manager.rollback(gtrid, reason)), as_json)


@app.command(epilog=_json({"gtrid": str, "forgotten": int}))
def forget(
    gtrid: Annotated[str, typer.Argument(metavar="[GTRID]")] = "",
    conf: Conf = _CONF,
    *,
    datasource: Annotated[str, typer.Option(help="Retire the log's notes of this datasource instead.")] = "",
    yes: Yes = False,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Dismiss the heuristic outcomes of an ended transaction, once they are repaired; or retire a datasource."""
    if bool(gtrid) == bool(datasource):
        raise typer.BadParameter("give a GTRID, or --datasource NAME")
    with _opened_manager(conf) as manager:
        if datasource:
            question = f"Forget that our nodes prepare in {datasource}? Nobody will find a branch that is left there."
            _confirm(manager, "", yes, question)
            count = manager.forget_datasource(datasource, reason)
        else:
            _confirm(manager, gtrid, yes, f"Forget the heuristic outcomes of {gtrid}?")
            count = manager.forget(gtrid, reason)
    subject = {"datasource": datasource} if datasource else {"gtrid": gtrid}
    _print({**subject, "forgotten": count} if as_json else f"{count} forgotten")


@app.command(epilog=_json(list[AuditEntry]))
def audit(conf: Conf = _CONF, as_json: AsJson = False) -> None:
    """Show the commands that people have run by hand: who, when, why, and the outcome."""
    with _opened_manager(conf) as manager:
        found = manager.audit_entries()
    _print(
        [asdict(entry) for entry in found] if as_json else display.format_audit(found) or "No command was run by hand."
    )


@app.command(epilog=_json(Suspension))
def suspend(conf: Conf = _CONF, reason: Reason = "", as_json: AsJson = False) -> None:
    """Let no pass of this node's recovery begin in any process until `resume`; a running pass is finished."""
    with _opened_manager(conf) as manager:
        found = manager.suspend(reason)
    _print(asdict(found) if as_json else str(found))


@app.command(epilog=_json({"resumed": bool}))
def resume(conf: Conf = _CONF, reason: Reason = "", as_json: AsJson = False) -> None:
    """End the suspension; a running daemon goes on with its next scan."""
    with _opened_manager(conf) as manager:
        resumed = manager.resume(reason)
    text = "recovery goes on with its next scan" if resumed else "recovery was not suspended"
    _print({"resumed": resumed} if as_json else text)


@app.command(epilog=_json(list[Step]))
def init(
    conf: Conf = _CONF,
    adopt: Annotated[
        bool,
        typer.Option("--adopt", help="Accept a copied or moved log; recovery leaves all its earlier branches alone."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create the decision log, and the tables of marks that are missing."""
    with _errors_as_exit_codes():
        steps = initialise(RecoverySettings.load(conf), adopt=adopt)
    if as_json:
        _print([asdict(step) for step in steps])
    else:
        for step in steps:
            _console().print(step.text, style=None if step.done else "red", soft_wrap=True)
    raise typer.Exit(ExitCode.OK if all(step.done for step in steps) else ExitCode.UNREACHABLE)


def main() -> None:
    """The entry point of the command."""
    print_plainly()
    plain = command_of(app, sys.argv[1:])
    if plain is None:
        app()
    else:
        plain(args=[])


# -- their parts --------------------------------------------------------------------------------------------------


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console  # it is not needed if nothing fails

    # A gid has colons around its datasource's name, which may be the name of an emoji.
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


@contextmanager
def _errors_as_exit_codes() -> Iterator[None]:
    """Print an `Error` as one line, and end with its exit code."""
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
def _opened_manager(conf: Path) -> Iterator[RecoveryManager]:
    with _errors_as_exit_codes(), closing(RecoveryManager(conf)) as manager:
        yield manager


def _end_by_hand(
    conf: Path, gtrid: str, yes: bool, question: str, act: Callable[[RecoveryManager], ScanReport]
) -> ScanReport:
    with _opened_manager(conf) as manager:
        _confirm(manager, gtrid, yes, question)
        return act(manager)


def _print_report(report: ScanReport, as_json: bool) -> None:
    _print(report if as_json else display.report_texts(report))
    raise typer.Exit(ExitCode.REFUSED if report.suspended else _exit_code(report))


def _confirm(manager: RecoveryManager, gtrid: str, yes: bool, question: str) -> None:
    """Show the transaction and ask for confirmation. Exits if the answer is no, or if nobody can answer."""
    if yes:
        return
    found = manager.show(gtrid) if gtrid else None
    if found is not None:
        typer.echo(display.format_transaction(found), err=True)
    try:
        if typer.confirm(question, err=True):
            return
    except typer.Abort:
        typer.echo("Nobody has confirmed the command: use --yes. Nothing was done.", err=True)
    raise typer.Exit(ExitCode.REFUSED)


def _print_suspension(manager: RecoveryManager) -> None:
    suspension = manager.suspended()
    if suspension is not None:
        typer.echo(f"{suspension}. Recovery does nothing until `txpool-recovery resume`", err=True)


def _print_missing(manager: RecoveryManager) -> None:
    """Print why the list may be incomplete: databases that did not answer, or that the configuration does not name."""
    if manager.unanswered:
        typer.echo(display.format_unanswered(manager.unanswered), err=True)
    if manager.unconfigured:
        typer.echo(display.format_unconfigured(manager.unconfigured), err=True)


def _exit_code(report: ScanReport) -> ExitCode:
    raised = {alarm.kind for alarm in report.alarms}
    applies = {
        ExitCode.IN_DOUBT: report.pending,
        ExitCode.UNREACHABLE: report.unreachable,
        ExitCode.HEURISTIC: report.heuristics,
        ExitCode.FAILED: report.errors,
        ExitCode.SLOTS: AlarmKind.SLOTS.value in raised,
        ExitCode.OVERDUE: AlarmKind.OVERDUE.value in raised,
        ExitCode.UNCONFIGURED: AlarmKind.UNCONFIGURED.value in raised,
    }
    # FOREIGN ranks lowest: anybody who may connect can raise it, and it must not hide another code.
    otherwise = ExitCode.FOREIGN if AlarmKind.FOREIGN.value in raised else ExitCode.OK
    return max((code for code, found in applies.items() if found), default=otherwise)


def _exit_code_of_listing(heuristic: bool, attention: bool, manager: RecoveryManager) -> ExitCode:
    """The exit code of `list` and `show`: whether any has a heuristic outcome, and whether a person should look."""
    if heuristic:
        return ExitCode.HEURISTIC
    if manager.unconfigured:
        return ExitCode.UNCONFIGURED
    if manager.unanswered:
        return ExitCode.UNREACHABLE
    return ExitCode.IN_DOUBT if attention else ExitCode.OK


def _print(what: Any) -> None:
    """Print text as it is, whatever the terminal's width, and anything else as JSON."""
    if isinstance(what, str):
        typer.echo(what)
    elif isinstance(what, Iterator):
        streams.write_lines(what)
    else:
        streams.write_json(what)
