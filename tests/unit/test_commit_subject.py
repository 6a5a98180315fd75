"""The hook takes subjects that say what to do, in one line, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commit_subject import main, problem


@pytest.mark.parametrize(
    "subject",
    [
        "Give commands, processes and idempotent work a room each",
        "Pass the note on",
        "Embed the server",
        "Focus on one",
        "Merge branch 'overdue': processes that hang after their prepares, whatever they may have done",
    ],
)
def test_an_imperative_passes(subject: str) -> None:
    assert problem(subject) is None


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        ("Added a room", "begins with 'added'"),
        ("Adding a room", "begins with 'adding'"),
        ("Adds a room", "begins with 'adds'"),
        ("Tests of rooms", "begins with 'tests'"),
        ("MariaDB's rooms", 'begins with "mariadb\'s"'),
        ("The rooms", "begins with 'the'"),
        ("add a room", "a capital"),
        ("Add a room.", "a full stop"),
        ("Add " + "a" * 69, "has 73 characters"),
    ],
)
def test_anything_else_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], subject: str, reason: str) -> None:
    message = tmp_path / "message"
    message.write_text(f"\n{subject}\n\n# a comment\n")
    assert main(str(message)) == 1
    assert reason in capsys.readouterr().err
