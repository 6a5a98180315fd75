"""Processes that run a piece of source beside a test, and say a line and hear a line at a time."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import preloaded

Child = preloaded.Process
#: What begins the command of a server that ends with the process that has started it, however that ends.
WITH_ITS_PARENT = ("setpriv", "--pdeathsig", "KILL")

# What every such source begins with.
_SPEECH = """
import sys, warnings
warnings.simplefilter("error")
def say(*words):
    # By one write, since a forked child says its own at the same time.
    print(" ".join(map(str, words)) + "\\n", end="", flush=True)
def heard():
    return sys.stdin.readline().split()
"""


@contextmanager
def children(prologue: str, epilogue: str) -> Iterator[Callable[..., Child]]:
    """`spawn(source, *arguments)` starts one; those that still run are killed at the end."""
    started: list[Child] = []

    def spawn(source: str, *arguments: str) -> Child:
        text = _SPEECH + prologue + textwrap.dedent(source) + epilogue
        started.append(preloaded.start("-c", text, *arguments, cwd=Path.cwd(), env=os.environ))
        return started[-1]

    yield spawn
    for process in started:
        process.kill()
        print(process.communicate()[1], end="")


def said(process: Child) -> list[str]:
    """The words of its next line; none where it has ended."""
    return process.stdout.readline().split()


def tell(process: Child, *words: str) -> None:
    process.stdin.write(" ".join(words) + "\n")
    process.stdin.flush()


def finished(process: Child) -> list[str]:
    """All that it has said since, once it has ended well."""
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    return output.split()
