"""The source distributions of other projects' tests, taken from package registries once, into pytest's cache folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from tests.support.archives import unpack

_SECONDS = 240
#: As it was before the tests began: none of them knows a certificate's authority.
_ENVIRONMENT = dict(os.environ)
_APT = Path("/etc/apt")
_DEBIAN = re.compile(r"^URIs:\s*(\S+/debian/?)\s*$", re.MULTILINE)
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class Missing(Exception):
    """A registry cannot be reached; the message says for what."""


class NotThere(Exception):
    """No registry of this machine has it; the message says what."""


def sdist(name: str, cache: Path) -> Path:
    """The unpacked source distribution of the installed version of a project, from pip's index."""
    wanted = f"{name}=={version(name)}"

    def download(folder: Path) -> Path:
        options = ["--quiet", "--no-deps", f"--no-binary={name}", "--disable-pip-version-check", f"--dest={folder}"]
        _run([sys.executable, "-m", "pip", "download", *options, wanted], folder, f"{wanted} as a source distribution")
        return next(folder.iterdir())

    return _cached(cache / wanted.replace("==", "-"), download)


def debian_source(package: str, cache: Path) -> Path:
    """The unpacked upstream source of a Debian package: sid's, from the mirror that this machine uses."""
    missing = f"Debian's source package {package}"
    if shutil.which("apt-get") is None or not _KEYRING.exists():
        raise NotThere(f"{missing}: this machine is no Debian")
    mirrors = [_DEBIAN.search(path.read_text()) for path in sorted(_APT.glob("sources.list.d/*.sources"))]
    mirror = next((found[1] for found in mirrors if found), None)
    if mirror is None:
        raise NotThere(f"{missing}: this machine names no mirror of Debian")

    def download(folder: Path) -> Path:
        (folder / "lists" / "partial").mkdir(parents=True)
        sources = folder / "sid.sources"
        sources.write_text(f"Types: deb-src\nURIs: {mirror}\nSuites: sid\nComponents: main\nSigned-By: {_KEYRING}\n")
        settings = {
            "Dir::Etc::sourcelist": sources,
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": folder / "lists",
            "Dir::Cache": folder / "cache",
            "APT::Sandbox::User": "",
        }
        apt = ["apt-get", "--quiet=2", *(f"--option={key}={value}" for key, value in settings.items())]
        try:
            _run([*apt, "update"], folder, missing)
            _run([*apt, "source", "--download-only", "--only-source", package], folder, missing)
        except Missing as error:  # a mirror need not have sources, nor sid
            raise NotThere(str(error)) from None
        return next(folder.glob("*.orig.tar.*"))

    return _cached(cache / f"debian-{package}", download)


def _run(command: list[str], folder: Path, missing: str) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=_ENVIRONMENT,
            check=False,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"{missing}: the registry has not answered within {_SECONDS} s") from None
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith(("E:", "ERROR"))] or [done.stderr]
        raise Missing(f"{missing}: {said[0].strip()}")


def _cached(place: Path, download: Callable[[Path], Path]) -> Path:
    """`place`, where an archive's only folder stands; other processes of the run may want it at the same time."""
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            downloads, unpacked = Path(folder, "downloads"), Path(folder, "unpacked")
            downloads.mkdir()
            archive = download(downloads)
            if archive.suffix == ".zip":
                with zipfile.ZipFile(archive) as zipped:
                    zipped.extractall(unpacked)
            else:
                with tarfile.open(archive) as tar:
                    unpack(tar, unpacked)
            (only,) = unpacked.iterdir()
            try:
                os.rename(only, place)
            except OSError:
                if not place.exists():  # another process was faster
                    raise
    return place
