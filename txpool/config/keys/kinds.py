"""In whose files a key of a datasource has a use: elsewhere it would be ignored in silence."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Final

from txpool.config import jdbc
from txpool.resource_managers import DATABASES, DELTA, FILES, ICEBERG, QUEUE

_KAFKA, _S3 = "kafka", "s3"
_WITH_USERS: Final = (*DATABASES, _KAFKA, jdbc.JMS, _S3, ICEBERG)
#: By a key, or how keys begin: the drivers. What is not here, every driver has.
_DRIVERS: Final = {
    **dict.fromkeys(jdbc.KEYS, (jdbc.DRIVER,)),
    **dict.fromkeys(jdbc.JVM_KEYS, (jdbc.DRIVER, jdbc.JMS)),
    "topic": (_KAFKA, jdbc.JMS),
    "group": (_KAFKA,),
    "offsets.datasource": (_KAFKA,),
    "queue": (QUEUE, jdbc.JMS),
    "queue.datasource": (QUEUE,),
    "queue.ordered": (QUEUE,),
    "parking": (_KAFKA, jdbc.JMS, QUEUE),
    "parking.after": (_KAFKA, jdbc.JMS, QUEUE),
    "folder": (FILES, DELTA),
    "bucket.owner": (_S3, ICEBERG),
    "staging": (_S3,),
    "catalog": (ICEBERG,),
    "catalog.": (ICEBERG,),
    "warehouse": (ICEBERG,),
    "dropped.tables": (ICEBERG,),
    "url": (*DATABASES, _KAFKA, jdbc.JMS, _S3),
    "user": _WITH_USERS,
    "password": _WITH_USERS,
    "credentials": _WITH_USERS,
    "driver.": _WITH_USERS,
    "recovery.": (*DATABASES, jdbc.JMS, _S3, ICEBERG),
    "prepared.owners": (*_WITH_USERS, FILES, DELTA),
    "pool.max-size": (*DATABASES, jdbc.JMS),
    **dict.fromkeys(("pool.", "managed.", "cmr.", "outbox.", "once.", "xa.", "transaction.required"), DATABASES),
}
#: The drivers whose files may have no other keys: another package's may have a use for any.
JUDGED: Final = frozenset(itertools.chain(*_DRIVERS.values()))
#: What Kafka's sessions call it, and those of queues call theirs.
_COUNTERPART: Final = {"queue": "topic", "queue.datasource": "offsets.datasource"}
_COUNTERPARTS: Final = _COUNTERPART | {theirs: ours for ours, theirs in _COUNTERPART.items()}


def drivers_with(key: str) -> tuple[str, ...] | None:
    """The drivers of txpool's own in whose files a key has a use; None if it has one in all."""
    group, dot, _ = key.partition(".")
    return _DRIVERS.get(key) or _DRIVERS.get(f"{group}{dot}")


def why_no_use(key: str, driver: str, given: Collection[str]) -> str:
    """What is wrong with a key that this driver has no use for, beside those that are given; and what to write."""
    drivers = drivers_with(key) or ()
    of_databases = set(DATABASES) <= {*drivers}
    others = ", ".join(each for each in drivers if each not in DATABASES or not of_databases)
    whose = " or ".join(["a database"] * of_databases + [f"driver = {others}"] * bool(others))
    instead = _COUNTERPARTS.get(key)
    has_it = instead is not None and instead not in given and driver in (drivers_with(instead) or ())
    do = f"write {instead}" if has_it else "leave it out"
    if driver == jdbc.DRIVER and "." not in key:
        do += f", or write driver.{key} for the setter of that name"
    return f"is a key of {whose}, and has no use with driver = {driver}: {do}"
