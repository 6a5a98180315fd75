"""How a command prints: on any terminal, and without what only developers read."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress
from io import TextIOWrapper


def print_plainly() -> None:
    """For a command: a warning is one line on stderr, without the code that it comes from.

    What stdout's encoding lacks is printed by its number. COLUMNS=0 counts as none: in so few, nothing is printed.
    """

    def show(message: object, *_: object, **__: object) -> None:
        sys.stderr.write(f"warning: {message}\n")

    warnings.showwarning = show
    if isinstance(sys.stdout, TextIOWrapper):
        with suppress(OSError):  # it was a file, and something else has taken its place
            sys.stdout.reconfigure(errors="backslashreplace")
    if os.environ.get("COLUMNS") == "0":
        del os.environ["COLUMNS"]
