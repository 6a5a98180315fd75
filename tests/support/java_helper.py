"""Compiles the Java helper: `python -m tests.support.java_helper` writes the archive that the package ships."""

from __future__ import annotations

import subprocess
import tempfile
import zipfile
from pathlib import Path

from tests.support.repository import ROOT

FOLDER = ROOT / "txpool/resources/jdbc/java"
ARCHIVE = FOLDER / "helper.jar"
#: What it runs on, and all later ones.
RELEASE = "11"


def compiled(sources: Path = FOLDER) -> dict[str, bytes]:
    """The bytes of each class, by its path in the archive."""
    with tempfile.TemporaryDirectory() as folder:
        files = sorted(str(each) for each in sources.rglob("*.java"))
        command = ["javac", "--release", RELEASE, "-g:source,lines", "-Xlint:all", "-Werror", "-d", folder, *files]
        subprocess.run(command, check=True)
        return {str(each.relative_to(folder)): each.read_bytes() for each in sorted(Path(folder).rglob("*.class"))}


def shipped() -> dict[str, bytes]:
    """The same of the archive that is shipped."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        return {each: archive.read(each) for each in archive.namelist()}


def write() -> None:
    """Write the archive; its bytes depend on the classes alone."""
    with zipfile.ZipFile(ARCHIVE, "w", zipfile.ZIP_STORED) as archive:
        for name, data in compiled().items():
            archive.writestr(zipfile.ZipInfo(name), data)


if __name__ == "__main__":
    write()
