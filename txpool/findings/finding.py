"""A finding of a check: its severity, what was found, why it matters, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from txpool.config.secrets import Secret, redact

_LONGEST = 600  # characters of one text, which may quote anything that a file holds


class Severity(Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"  #: it works, and somebody should know
    WRONG = "wrong"  #: it cannot work, or transactions are not safe


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `topic` is a stable word for programs."""

    severity: Severity
    topic: str
    found: str
    why: str = ""
    do: str = ""
    #: What an administrator of the database executes, without semicolons. `do` says it as well.
    statements: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """The finding as text: what was found, why it matters, and what to do."""
        yield f"{self.severity.value + ':':<8} {self.found}"
        if self.why:
            yield f"         why: {self.why}"
        if self.do:
            yield f"         do:  {self.do}"


def ok(topic: str, found: str) -> Finding:
    """A finding that needs no action."""
    return Finding(Severity.OK, topic, found)


def warning(topic: str, found: str, why: str, do: str, statements: tuple[str, ...] = ()) -> Finding:
    """A finding of something that works, and that somebody should know."""
    return Finding(Severity.WARNING, topic, found, why, do, statements)


def failure(topic: str, found: str, why: str = "", do: str = "") -> Finding:
    """A finding of something that cannot work, or that makes transactions unsafe."""
    return Finding(Severity.WRONG, topic, found, why, do)


class NotConnected(Exception):
    """A server does not answer, or refuses the connection; `finding` says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.found)
        self.finding = finding


@dataclass(frozen=True, slots=True)
class Section:
    """The findings about one subject: a file, a datasource, the decision log."""

    subject: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All sections of a check. Immutable."""

    sections: tuple[Section, ...]

    def has(self, severity: Severity, *topics: str) -> bool:
        """Whether a finding has this severity and, if topics are given, one of them."""
        return any(
            finding.severity is severity and (not topics or finding.topic in topics)
            for section in self.sections
            for finding in section.findings
        )

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data, for JSON."""
        return {
            "sections": [
                {
                    "subject": section.subject,
                    "findings": [
                        {"severity": f.severity.value, "topic": f.topic, "found": f.found, "why": f.why, "do": f.do}
                        for f in section.findings
                    ],
                }
                for section in self.sections
            ]
        }


def section(subject: str, findings: Iterable[Finding], secrets: Iterable[Secret | None] = ()) -> Section:
    """A section whose texts have no secret and no control character."""
    secrets = tuple(secrets)
    # Findings about a file are redacted already. Advice has no secret, and `password = ${env:NAME}` must stay readable.
    redacted = (
        Finding(
            f.severity,
            f.topic,
            _shown(f.found if f.topic == "file" else redact(f.found, secrets)),
            _shown(f.why),
            _shown(f.do),
            tuple(map(_shown, f.statements)),
        )
        for f in findings
    )
    return Section(_shown(redact(subject, secrets)), tuple(redacted))


def _shown(text: str) -> str:
    plain = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(plain.split())[:_LONGEST]
