"""The Java helper that is shipped is what its source says."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.java_helper import FOLDER, RELEASE, compiled, shipped
from txpool.resources.jdbc.dbapi import kinds

if TYPE_CHECKING:
    from tests.conftest import Require


@pytest.mark.costly
def test_the_shipped_classes_are_what_the_source_compiles_to(require: Require) -> None:
    require(shutil.which("javac"), "a Java compiler: apt-get install default-jdk-headless")
    answer = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=True).stdout
    if not answer.startswith("javac 17."):
        pytest.skip(f"what is shipped was compiled by javac 17, and another may write other bytes: {answer.strip()}")
    assert compiled() == shipped(), "python -m tests.support.java_helper compiles it again"


def test_every_java_from_this_one_on_runs_them() -> None:
    versions = {int.from_bytes(data[6:8], "big") for data in shipped().values()}
    assert versions == {int(RELEASE) + 44}


def test_both_sides_have_the_same_numbers_of_kinds() -> None:
    source = (FOLDER / "txpool/jdbc/Kind.java").read_text(encoding="utf-8")
    found = {name: int(number) for name, number in re.findall(r"byte (\w+) = (\d+)", source)}
    assert found == {name: value for name, value in vars(kinds).items() if name.isupper()}
