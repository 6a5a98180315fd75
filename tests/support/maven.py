"""The class paths of servers that Maven brings."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import zlib
from pathlib import Path


def find_classpath(pom: Path, **properties: str) -> str | None:
    """The jars that a POM names, with these properties; None if Maven, Java or one of them is missing."""
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        return None
    given = [f"-D{name}={value}" for name, value in properties.items()]
    content = zlib.crc32(pom.read_bytes() + " ".join(given).encode())
    named = f"txpool-test-{pom.parent.name}-{os.getuid()}-{content}.classpath"
    file = Path(tempfile.gettempdir()) / named
    with open(Path(tempfile.gettempdir()) / "txpool-test-maven.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the suite's other processes want the same
        if file.exists() and all(Path(jar).exists() for jar in file.read_text().split(":")):
            return file.read_text()
        command = [maven, "-q", "-B", "-f", str(pom), "dependency:build-classpath", f"-Dmdep.outputFile={file}"]
        subprocess.run(
            [*command, *given], check=False, timeout=400, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    return file.read_text() if file.exists() else None
