"""Threads that use a Java class for the first time at the same time: JPype's own calls would kill the process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import preloaded

pytestmark = pytest.mark.slow

#: One thread makes a class, and is held before JPype knows how to convert arguments to it; the other one calls.
_CHILD = """
import sys, threading, time
import jpype._jcustomizer as customizer
from txpool.resources.jdbc.dbapi.errors import call
from txpool.resources.jdbc.jvm import jvm

classes = jvm.started()
held = threading.Event()
hints = customizer.getClassHints

def hold(name):
    if name == "java.util.Comparator" and sys._getframe(1).f_code.co_name == "_jclassPost":
        held.set()
        time.sleep(1)
    return hints(name)

customizer.getClassHints = hold
values = call(classes.load("java.util.ArrayList"))
threading.Thread(target=lambda: classes.load("java.util.Comparator")).start()
assert held.wait(60)
try:
    call(values.sort, "no comparator")
except TypeError as error:
    print(error)
"""


def test_an_argument_for_a_class_that_another_thread_is_making(tmp_path: Path) -> None:
    done = preloaded.run("-c", _CHILD, cwd=tmp_path, env=dict(os.environ))
    assert (done.returncode, "No matching overloads" in done.stdout) == (0, True), (done.returncode, done.stderr)
