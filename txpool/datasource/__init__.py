"""Datasources: the class of a named database, the registry of this process's, and how one is found."""

from __future__ import annotations

from txpool.datasource.datasource import DataSource, open_file, open_serialized, open_settings
from txpool.datasource.lookup import connect, find, find_file, find_source
from txpool.datasource.registry import install_received, known, opened, register, when_used
from txpool.datasource.source import Source

__all__ = [
    "DataSource",
    "Source",
    "connect",
    "find",
    "find_file",
    "find_source",
    "install_received",
    "known",
    "open_file",
    "open_serialized",
    "open_settings",
    "opened",
    "register",
    "when_used",
]
