"""The class paths of servers that Maven brings."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import zlib
from pathlib import Path


def find_classpath(pom: Path) -> str | None:
    """The jars that a POM names; None if Maven, Java or one of them is missing."""
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        return None
    named = f"txpool-test-{pom.parent.name}-{os.getuid()}-{zlib.crc32(pom.read_bytes())}.classpath"
    file = Path(tempfile.gettempdir()) / named
    with open(Path(tempfile.gettempdir()) / "txpool-test-maven.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the suite's other processes want the same
        if file.exists() and all(Path(jar).exists() for jar in file.read_text().split(":")):
            return file.read_text()
        command = [maven, "-q", "-B", "-f", str(pom), "dependency:build-classpath", f"-Dmdep.outputFile={file}"]
        subprocess.run(command, check=False, timeout=400, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return file.read_text() if file.exists() else None
