"""The reader of javaproperties, without the rest of that package: its writer of XML imports an HTTP client."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import javaproperties as reading
else:

    def _reading() -> ModuleType:
        spec = find_spec("javaproperties")
        if "javaproperties" in sys.modules or spec is None:
            return import_module("javaproperties")
        # A package of our own over the same folder: so the folder's `__init__`, which imports all of it, is not run.
        package = ModuleType(f"{__name__}_javaproperties")
        package.__path__ = spec.submodule_search_locations
        sys.modules[package.__name__] = package
        return import_module(f"{package.__name__}.reading")

    reading = _reading()

__all__ = ["reading"]
