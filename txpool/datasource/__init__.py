"""Datasources: the class of a named database, the registry of this process's, and how one is found."""

from __future__ import annotations

from txpool.datasource.datasource import DataSource
from txpool.datasource.lookup import connect, find
from txpool.datasource.registry import install_received, known, opened, register, when_used

__all__ = ["DataSource", "connect", "find", "install_received", "known", "opened", "register", "when_used"]
