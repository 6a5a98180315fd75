"""The report of a check, for people, and the exit code that sums it up."""

from __future__ import annotations

from rich.console import Console

from txpool.findings.finding import CheckReport, Severity
from txpool.process.exit_codes import ExitCode

_STYLES = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.WRONG: "bold red"}
_CODES: tuple[tuple[ExitCode, Severity, list[str]], ...] = (
    (ExitCode.UNREACHABLE, Severity.WRONG, ["connection"]),
    (ExitCode.CONFIGURATION, Severity.WRONG, ["file"]),
    (ExitCode.WRONG, Severity.WRONG, []),
    (ExitCode.WARNING, Severity.WARNING, []),
)


def print_report(report: CheckReport, console: Console) -> None:
    """Print every finding below its file or datasource."""
    for section in report.sections:
        console.print(section.subject, style="bold", soft_wrap=True)
        for finding in section.findings:
            for number, line in enumerate(finding.lines()):
                console.print(line, style=None if number else _STYLES[finding.severity], soft_wrap=True)


def exit_code_of(report: CheckReport) -> ExitCode:
    """The code of the gravest finding; OK if none is wrong."""
    return next((code for code, severity, topics in _CODES if report.has(severity, *topics)), ExitCode.OK)
