"""The contenders: their versions, and the recovery of each, as its own pages have it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from recovery import RecoveryManager
from tests.rivals.executors import driver_jar

#: The name of a variable.
PASSWORD = "TXPOOL_RIVALS_PASSWORD"
#: Of what is no crash: sqlalchemy-xa-recovery takes for dead what is prepared for longer.
_GRACE = timedelta(milliseconds=10)

#: By contender, the packages whose versions count.
PACKAGES = {
    "txpool": ("txpool",),
    "sqlalchemy-xa-recovery": ("sqlalchemy-xa-recovery", "SQLAlchemy"),
    "sqlalchemy": ("SQLAlchemy", "psycopg"),
    "transaction": ("transaction", "psycopg"),
    "django": ("Django",),
    "spark-jdbc": ("pyspark",),
    "txpool-spark": ("txpool", "pyspark"),
}
#: Those whose clients are drivers of Spark, over an executor of their own.
OVER_SPARK = {"spark-jdbc", "txpool-spark"}
#: Those whose recovery may run beside living clients, by what they say.
BESIDE_CLIENTS = {"txpool", "txpool-spark", "sqlalchemy-xa-recovery"}

#: Those that have a recovery which reads one database after the other.
BETWEEN_LISTINGS = ("txpool", "sqlalchemy-xa-recovery")


def installed(contender: str) -> str:
    """Its packages with their versions; empty if one is missing."""
    try:
        found = [f"{package} {version(package)}" for package in PACKAGES[contender]]
    except PackageNotFoundError:
        return ""
    if contender in OVER_SPARK:
        if not driver_jar().exists():
            return ""
        found.append(driver_jar().stem)
    return ", ".join(found)


def _engines(urls: list[str]) -> list[Any]:
    from sqlalchemy import NullPool, create_engine

    password = {"password": os.environ[PASSWORD]}
    return [
        create_engine(url.replace("postgresql:", "postgresql+psycopg:"), connect_args=password, poolclass=NullPool)
        for url in urls
    ]


def by_txpool(urls: list[str], conf: Path) -> None:
    manager = RecoveryManager(conf)
    try:
        manager.scan()
    finally:
        manager.close()


def by_xa_recovery(urls: list[str], conf: Path) -> None:
    from sqlalchemy_xa_recovery import recover_xa_transactions

    recover_xa_transactions(_engines(urls), _GRACE)


def by_hand(urls: list[str], conf: Path) -> None:
    """By SQLAlchemy's own calls: a branch's name tells nothing of the other branch, and so none counts as decided."""
    import psycopg

    for engine in _engines(urls):
        with engine.connect() as connection:
            for name in connection.recover_twophase():
                with suppress(psycopg.errors.FeatureNotSupported):  # it lists the whole server, and this is another's
                    connection.rollback_prepared(name, recover=True)


def nothing(urls: list[str], conf: Path) -> None:
    """It has no recovery."""


RECOVERIES: dict[str, Callable[[list[str], Path], None]] = {
    "txpool": by_txpool,
    "txpool-spark": by_txpool,
    "sqlalchemy-xa-recovery": by_xa_recovery,
    "sqlalchemy": by_hand,
}
