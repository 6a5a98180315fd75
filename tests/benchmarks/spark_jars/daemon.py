"""PySpark 4.1's daemon of Python workers, which reads the contents of archives anew only if the path has changed.

As 4.3 does it. 4.1 does so before each task: with Python 3.11 that takes 0.13 s of processor time.
"""

from __future__ import annotations

import importlib
import sys

from pyspark import daemon

_invalidate = importlib.invalidate_caches
_path: list[str] = []


def _if_the_path_has_changed() -> None:
    if _path != sys.path:
        _path[:] = sys.path
        _invalidate()


if __name__ == "__main__":
    importlib.invalidate_caches = _if_the_path_has_changed
    daemon.manager()
