"""What a check says: each finding has its severity, what was found, why it matters, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from txpool.config.secrets import Secret, redact

_LONGEST = 600  # characters of one text: what a file holds may be anything


class Severity(Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"  #: it works, and somebody should know
    WRONG = "wrong"  #: it cannot work, or it loses what was promised


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `topic` is a stable word for programs."""

    severity: Severity
    topic: str
    found: str
    why: str = ""
    do: str = ""

    def lines(self) -> Iterator[str]:
        """For people: what, why, and what to do."""
        yield f"{self.severity.value + ':':<8} {self.found}"
        if self.why:
            yield f"         why: {self.why}"
        if self.do:
            yield f"         do:  {self.do}"


def ok(topic: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding(Severity.OK, topic, found)


def warning(topic: str, found: str, why: str, do: str) -> Finding:
    """It works, and somebody should know."""
    return Finding(Severity.WARNING, topic, found, why, do)


def failure(topic: str, found: str, why: str = "", do: str = "") -> Finding:
    """It cannot work, or it loses what was promised."""
    return Finding(Severity.WRONG, topic, found, why, do)


class NotConnected(Exception):
    """Nobody answers, or lets us in; carries what to say about it."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.found)
        self.finding = finding


@dataclass(frozen=True, slots=True)
class Section:
    """All that was found about one subject: a file, a datasource, the decision log."""

    subject: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """A whole check. Immutable."""

    sections: tuple[Section, ...]

    def has(self, severity: Severity, *topics: str) -> bool:
        """Whether anything is as bad as that, about one of the topics where any are named."""
        return any(
            finding.severity is severity and (not topics or finding.topic in topics)
            for section in self.sections
            for finding in section.findings
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
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
    """A section in which no secret and no control character is shown."""
    secrets = tuple(secrets)
    # What is said of a file hides its secrets already, and advice has none: `password = ${env:NAME}` is to be read.
    told = (
        Finding(
            f.severity,
            f.topic,
            _shown(f.found if f.topic == "file" else redact(f.found, secrets)),
            _shown(f.why),
            _shown(f.do),
        )
        for f in findings
    )
    return Section(_shown(redact(subject, secrets)), tuple(told))


def _shown(text: str) -> str:
    plain = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(plain.split())[:_LONGEST]
