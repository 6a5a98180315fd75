"""What a process of kill_at() runs: the function that it is given on its standard input."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
from types import ModuleType


def run() -> None:
    """Call the function with its arguments."""
    given = sys.stdin.buffer
    name, file, function = pickle.load(given)
    module = _module(name, file)
    getattr(module, function)(*pickle.load(given))


def _module(name: str, file: str | None) -> ModuleType:
    """The module by its name; if there is none of that name, as pytest's importlib mode makes them, by its file."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if file is None or not name.startswith(missing.name or name):
            raise
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
