"""Tests of one's own atomicity: fixtures of pytest, kills at named points, and assertions that nothing is left.

In conftest.py::

    pytest_plugins = ["txpool.testing"]

That loads the fixtures. An entry point would be imported by every pytest session of an environment that has txpool.
"""

from __future__ import annotations

import importlib.util

from txpool.errors import ConfigurationError

if importlib.util.find_spec("pytest") is None:
    raise ConfigurationError("txpool.testing needs pytest, which is not installed: pip install 'txpool[testing]'")

from txpool.testing.fixtures import txpool_databases, txpool_postgres, txpool_transaction  # noqa: F401 - for pytest
from txpool.testing.killing import kill_at
from txpool.testing.leftovers import assert_nothing_left, recover_once
from txpool.testing.refusing import refusing_to_prepare

# Not the fixtures: whoever imports one into a module has overridden what overrides it.
__all__ = [
    "assert_nothing_left",
    "kill_at",
    "recover_once",
    "refusing_to_prepare",
]
