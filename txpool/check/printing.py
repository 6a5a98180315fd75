"""The report of a check, for people, and the exit code that sums it up."""

from __future__ import annotations

from rich.console import Console

from txpool.findings.finding import CheckReport, Severity
from txpool.process.exit_codes import TxpoolExitCode

_STYLES = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.WRONG: "bold red"}
_CODES: tuple[tuple[TxpoolExitCode, Severity, list[str]], ...] = (
    (TxpoolExitCode.UNREACHABLE, Severity.WRONG, ["connection"]),
    (TxpoolExitCode.CONFIGURATION, Severity.WRONG, ["file"]),
    (TxpoolExitCode.WRONG, Severity.WRONG, []),
    (TxpoolExitCode.WARNING, Severity.WARNING, []),
)


def print_report(report: CheckReport, console: Console) -> None:
    """Print every finding below its file or datasource."""
    for section in report.sections:
        console.print(section.subject, style="bold", soft_wrap=True)
        for finding in section.findings:
            for number, line in enumerate(finding.lines()):
                console.print(line, style=None if number else _STYLES[finding.severity], soft_wrap=True)


def exit_code_of(report: CheckReport) -> TxpoolExitCode:
    """The code of the gravest finding; OK if none is wrong."""
    return next((code for code, severity, topics in _CODES if report.has(severity, *topics)), TxpoolExitCode.OK)
