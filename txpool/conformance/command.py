"""`txpool check --conformance`: the kit over the datasources of a file."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path

from rich.console import Console
from rich.status import Status

from txpool.config.keys import COORDINATOR_KEYS, RECOVERY_KEYS
from txpool.config.properties import Properties
from txpool.config.settings import DataSourceSettings, RecoverySettings
from txpool.conformance.cases.case import CaseResult
from txpool.conformance.kit import CASES, Conformance, run_cases
from txpool.conformance.server import CommandServer, KillableServer
from txpool.errors import ConfigurationError
from txpool.process.exit_codes import TxpoolExitCode

_COORDINATION = frozenset(key.name for key in COORDINATOR_KEYS + RECOVERY_KEYS)


def run_file(
    path: Path, *, kill_command: str | None, start_command: str | None, patience: float, console: Console | None
) -> list[Conformance]:
    """Run the kit against the datasource of a file, or against all that a coordinator's or recovery's file names.

    `console` shows the case that has ended last, if it is a terminal. ConfigurationError.
    """
    files = _datasources(path)
    server = _server(kill_command, start_command, len(files))
    settings = [DataSourceSettings.load(each) for each in files]
    logging.getLogger("txpool").addHandler(logging.NullHandler())  # the cases provoke what is logged
    runs = []
    for each in settings:
        if console is None:
            runs.append(run_cases(each, server=server, patience=patience))
            continue
        with console.status(f"{each.name}: {len(CASES)} cases") as status:
            ended = partial(_show, status, each.name, count(1))
            runs.append(run_cases(each, server=server, patience=patience, when_ended=ended))
    return runs


def _show(status: Status, name: str, places: Iterator[int], result: CaseResult) -> None:
    status.update(f"{name}: {next(places)} of {len(CASES)} cases; {result.case.title}: {result.verdict.value}")


def _datasources(path: Path) -> tuple[Path, ...]:
    properties = Properties.load(path)
    if _COORDINATION.isdisjoint(properties):
        return (path,)
    found = RecoverySettings.load(properties).datasources
    if not found:
        raise ConfigurationError(f"{path} names no datasource: write datasources = …, or name a datasource's file")
    return found


def _server(kill: str | None, start: str | None, datasources: int) -> KillableServer | None:
    if kill is None and start is None:
        return None
    if kill is None or start is None:
        raise ConfigurationError("give both --kill-command and --start-command: a server that is killed must start")
    if datasources > 1:
        raise ConfigurationError("the commands kill one server: name the file of one datasource with them")
    return CommandServer(kill, start)


def exit_code(runs: Sequence[Conformance]) -> TxpoolExitCode:
    """The exit code of the command."""
    if any(run.unreachable for run in runs):
        return TxpoolExitCode.UNREACHABLE
    return TxpoolExitCode.OK if all(run.passed for run in runs) else TxpoolExitCode.WRONG
