"""Resource managers that were written for txpool before 0.2: flat attributes, and no class `Database`.

They are brought up to date when they are loaded, with a warning that says what to write.
"""

from __future__ import annotations

from typing import Any

from txpool.deprecation import deprecated
from txpool.resources.database import Database
from txpool.resources.manager import ResourceManager
from txpool.resources.parts import DsnPart, LogPart, SparkPart, SQLAlchemyPart

#: The flat names, and what is written today.
_FLAT = {
    "sqlalchemy_url": 'sqlalchemy = SQLAlchemyPart("…")',
    "connected_by_sqlalchemy": "sqlalchemy = SQLAlchemyPart(url, connected)",
    "spark_write": 'spark = SparkPart(write="…")',
    "spark_tasks": 'spark = SparkPart(tasks="…")',
    "why_no_tasks": 'spark = SparkPart(why_no_tasks="…")',
    "counts_slots": "spark = SparkPart(counts_slots=True)",
    "log_server": 'log = LogPart("…", schemes)',
    "log_schemes": "log = LogPart(server, schemes)",
    "is_dsn": "dsn = DsnPart(is_dsn, url_of)",
    "url_of": "dsn = DsnPart(is_dsn, url_of)",
}
_OF_SPARK = ("spark_write", "spark_tasks", "why_no_tasks", "counts_slots")


def brought_up_to_date(manager: ResourceManager) -> ResourceManager:
    """The same object, with the parts that its flat attributes describe; a `Database`, if it makes a driver."""
    kind = type(manager)
    names = {name for each in kind.__mro__ for name in vars(each)}
    flat = {name: getattr(manager, name) for name in _FLAT if name in names}
    made = "make_driver" in names and not isinstance(manager, Database)
    if not flat and not made:
        return manager
    advice = ["derive it from txpool.resource.Database, not ResourceManager"] * made
    advice += dict.fromkeys(f"{name}: {_FLAT[name]}" for name in flat)
    deprecated(f"the resource manager {kind.__qualname__}", since="0.1", gone_in="0.2", instead="; ".join(advice))
    # The name stays, so that what is defined in the module goes on to refer to the same object.
    manager.__class__ = type(kind.__name__, (kind, Database) if made else (kind,), _parts(flat))
    return manager


def _parts(flat: dict[str, Any]) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    if flat.get("sqlalchemy_url"):
        parts["sqlalchemy"] = SQLAlchemyPart(flat["sqlalchemy_url"], flat.get("connected_by_sqlalchemy"))
    if given := {name.removeprefix("spark_"): flat[name] for name in _OF_SPARK if name in flat}:
        parts["spark"] = SparkPart(**given)
    if flat.get("log_server"):
        parts["log"] = LogPart(flat["log_server"], flat.get("log_schemes", ()))
    if "is_dsn" in flat and "url_of" in flat:
        parts["dsn"] = DsnPart(flat["is_dsn"], flat["url_of"])
    return parts
