"""What Django's ENGINE leads to: the connection of one alias, over the database of a datasource.

    DATABASES = {"default": {"ENGINE": "txpool.django", "NAME": "conf/orders.properties"}}

Invariants:

* The first `atomic` that is entered in a thread, of any alias, begins a transaction of txpool's, and that block's end
  is its end: one outcome for all aliases. Within it, and within `txpool.transaction()`, each alias is to Django as a
  connection that is not in autocommit mode: its outermost `atomic` is a savepoint, and it joins without one.
* Nothing that was done in a block is committed before the block has been left, nor if it was left otherwise than by
  its end: as by an interrupt, or if its transaction ended first. Then no statement runs as if outside of it.
* What cannot be undone alone makes the whole transaction rollback-only.
* on_commit() functions run once the outcome is known to be the commit, outside of the transaction, and only then.
* A connection belongs to one transaction, or to none. Each is set up as by Django's connect().
"""

from __future__ import annotations

from typing import Any

from txpool.errors import ConfigurationError

try:
    from django.db import DEFAULT_DB_ALIAS
except ImportError as missing:
    raise ConfigurationError(
        "ENGINE txpool.django needs Django, which is not installed: pip install 'txpool[django]'"
    ) from missing

from txpool.django.sources import driver_of


def DatabaseWrapper(settings_dict: dict[str, Any], alias: str = DEFAULT_DB_ALIAS) -> Any:
    """The connection of an alias: of the class for its datasource's driver. ImproperlyConfigured."""
    driver = driver_of(settings_dict, alias)
    if driver == "psycopg":
        from txpool.django import postgresql

        return postgresql.DatabaseWrapper(settings_dict, alias)
    if driver == "sqlite3":
        from txpool.django import sqlite

        return sqlite.DatabaseWrapper(settings_dict, alias)
    from txpool.django import mysql

    return mysql.wrapper_over(driver)(settings_dict, alias)
