"""Processes that run a piece of source beside a test, and say a line and hear a line at a time."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Child = subprocess.Popen[str]

# What every such source begins with.
_SPEECH = """
import sys
def say(*words):
    print(*words, flush=True)
def heard():
    return sys.stdin.readline().split()
"""


@contextmanager
def children(prologue: str, epilogue: str) -> Iterator[Callable[..., Child]]:
    """`spawn(source, *arguments)` starts one; those that still run are killed at the end."""
    started: list[Child] = []

    def spawn(source: str, *arguments: str) -> Child:
        text = _SPEECH + prologue + textwrap.dedent(source) + epilogue
        command = [sys.executable, "-W", "error", "-c", text, *arguments]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield spawn
    for process in started:
        process.kill()
        process.communicate()


def said(process: Child) -> list[str]:
    """The words of its next line; none where it has ended."""
    assert process.stdout is not None
    return process.stdout.readline().split()


def tell(process: Child, *words: str) -> None:
    assert process.stdin is not None
    process.stdin.write(" ".join(words) + "\n")
    process.stdin.flush()


def finished(process: Child) -> list[str]:
    """All that it has said since, once it has ended well."""
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return output.split()
