"""How many of many branches have ended, in words."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from txpool.resources.base import BranchOutcome
from txpool.tm.commit import progress
from txpool.tm.commit.progress import PhaseTwoProgress
from txpool.tm.commit.split_phase import await_each


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    terminal = True

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "monotonic", clock)
    return clock


def after(clock: Clock, ended: int, seconds: float, total: int = 10_000) -> PhaseTwoProgress:
    found = PhaseTwoProgress("it")
    found.total, found.ended = total, ended
    clock.now += seconds
    return found


@pytest.mark.parametrize(
    ("ended", "seconds", "words"),
    [
        (0, 9.0, "0 of 10,000 branches ended"),
        (3_400, 0.5, "3,400 of 10,000 branches ended"),
        (3_400, 2.06, "3,400 of 10,000 branches ended, some 4 s left"),
        (100, 10.0, "100 of 10,000 branches ended, some 16 min left"),
        (10_000, 9.0, "10,000 of 10,000 branches ended"),
    ],
)
def test_its_words(clock: Clock, ended: int, seconds: float, words: str) -> None:
    assert str(after(clock, ended, seconds)) == words


def test_it_is_logged_every_few_seconds(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    found = after(clock, 0, 0.0, total=4)
    with caplog.at_level(logging.INFO, "txpool"):
        for _ in range(4):
            clock.now += 3
            found.one_ended()
    assert caplog.messages == ["it: 2 of 4 branches ended, some 6 s left"]


@pytest.mark.parametrize("terminal", [True, False])
def test_it_stands_on_a_terminal_until_the_last_branch(
    clock: Clock, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Terminal()
    out.terminal = terminal
    monkeypatch.setattr(sys, "stderr", out)
    found = after(clock, 0, 0.0, total=2)
    for _ in range(2):
        clock.now += 2
        found.one_ended()
    line = "it: 1 of 2 branches ended, some 2 s left"
    assert out.getvalue() == (f"\r{line}\x1b[K\rit: 2 of 2 branches ended\x1b[K\r\x1b[K" if terminal else "")


@pytest.mark.parametrize(
    "error", [BlockingIOError("it would block"), ValueError("it is closed"), AttributeError("write")]
)
@pytest.mark.parametrize("call", ["isatty", "write", "flush"])
def test_a_terminal_that_takes_nothing_is_no_failure(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, error: Exception, call: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    out = Terminal()
    monkeypatch.setattr(out, call, fail)
    monkeypatch.setattr(sys, "stderr", out)
    found = after(clock, 0, 0.0, total=2)
    for _ in range(2):
        clock.now += 2
        found.one_ended()
    found.clear()
    assert found.ended == 2


def test_an_interrupt_as_it_is_told_changes_no_outcome(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    class Branch:
        def await_commit(self) -> BranchOutcome:
            return BranchOutcome.COMMITTED

    def interrupt(self: PhaseTwoProgress) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PhaseTwoProgress, "one_ended", interrupt)
    branches: list[object] = [Branch(), Branch()]
    outcomes: dict[object, BranchOutcome] = dict.fromkeys(branches, BranchOutcome.UNKNOWN)
    failures: list[BaseException] = []
    await_each(branches, BranchOutcome.COMMITTED, outcomes, failures.append, PhaseTwoProgress("it"))  # type: ignore[arg-type]
    assert set(outcomes.values()) == {BranchOutcome.COMMITTED}
    assert len(failures) == 2
