"""Counts the instructions of parts of a Python process by callgrind, a tool of valgrind.

Counted are instructions in user space, of the interpreter and of all libraries, in all threads; not the kernel's. The
watched process calls `mark()` between its parts. Valgrind runs one thread at a time and without the machine's address
randomisation, so the counts of two runs hardly differ, whatever else the machine does.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

#: Ends a part: callgrind writes its counts, and begins again at 0, whenever this function of the C library is called.
mark = os.getpgrp
_MARK = "getpgrp"

_PART = re.compile(r"^part: (\d+)$", re.MULTILINE)
_TRIGGER = re.compile(r"^desc: Trigger: (.*)$", re.MULTILINE)
_TOTALS = re.compile(r"^totals: (\d+)$", re.MULTILINE)


def count(arguments: Sequence[str], environment: Mapping[str, str]) -> list[int]:
    """The instructions of each part of a run of Python with these arguments, from the start or a mark to the next mark.

    What follows the last mark is not counted. Errors: RuntimeError if the run fails, FileNotFoundError if there is no
    valgrind.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        watch = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", f"--dump-before={_MARK}"]
        ended = subprocess.run(
            [*watch, sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
        )
        if ended.returncode != 0:
            raise RuntimeError(f"the run under callgrind failed with exit code {ended.returncode}:\n{ended.stderr}")
        return parts(path.read_text(errors="replace") for path in out.parent.iterdir())


def parts(dumps: Iterable[str]) -> list[int]:
    """The totals of the dumps that a mark has triggered, in the order of the marks."""
    totals: dict[int, int] = {}
    for dump in dumps:
        part, trigger, total = _PART.search(dump), _TRIGGER.search(dump), _TOTALS.search(dump)
        if part is None or trigger is None or total is None:
            raise RuntimeError(f"callgrind has written what is no dump of its counts:\n{dump[:300]}")
        if trigger[1] == f"--dump-before={_MARK}":
            totals[int(part[1])] = int(total[1])
    return [totals[part] for part in sorted(totals)]
