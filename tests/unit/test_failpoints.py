"""Failpoints: named, armed by call or environment, and nothing otherwise."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import recovery
import txpool
from txpool import failpoints

SOURCES = [
    path
    for package in (txpool, recovery)
    for path in Path(package.__file__).parent.rglob("*.py")
    if path.name != "failpoints.py"
]


def test_every_point_stands_in_the_code_and_no_other_does() -> None:
    code = "".join(path.read_text() for path in SOURCES)
    assert set(re.findall(r'failpoints\.hit\("([^"]+)"\)', code)) <= set(failpoints.POINTS)
    assert {name for name in failpoints.POINTS if f'"{name}"' not in code} == set()


def test_an_armed_point_raises_the_nth_time() -> None:
    with failpoints.arming("coordinator.decided", nth=2):
        failpoints.hit("coordinator.decided")
        failpoints.hit("coordinator.begin")
        with pytest.raises(failpoints.Failpoint, match=r"coordinator\.decided"):
            failpoints.hit("coordinator.decided")
        failpoints.hit("coordinator.decided")
    assert not failpoints.armed
    failpoints.hit("coordinator.decided")


def test_a_wrong_name_is_refused() -> None:
    with pytest.raises(ValueError, match="no failpoint is called"):
        failpoints.arm("coordinator.dcided")
    with pytest.raises(ValueError, match="none of raise"):
        failpoints.arm("coordinator.decided", "explode")


def test_the_environment_arms_a_child() -> None:
    code = "from txpool import failpoints; print(failpoints.armed, flush=True); failpoints.hit('log.record')"
    child = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        env=os.environ | {"TXPOOL_FAILPOINTS": "log.record=kill, log.recorded=raise@2"},
        capture_output=True,
        text=True,
    )
    assert (child.stdout, child.returncode) == ("True\n", -signal.SIGKILL)
