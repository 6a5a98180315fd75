"""The keys of lakes: of tables in files, whose catalog is in a datasource, or a REST server's."""

from __future__ import annotations

from txpool.config.keys.key import Key

LAKE_KEYS = (
    Key("catalog", "file", None, "With driver = iceberg: the file of the datasource that has the catalog's tables."),
    Key(
        "catalog.type",
        "choice",
        None,
        "With driver = iceberg, in place of catalog: rest, if the catalog is a REST server's. Its tables take appends.",
        {"choices": ("rest",)},
    ),
    Key("catalog.uri", "string", None, "With catalog.type = rest: the server's url. password is a token, or user's."),
    Key(
        "warehouse",
        "location",
        None,
        "With driver = iceberg: the folder of the tables' files, which must exist, or s3://bucket/prefix.",
    ),
    Key(
        "dropped.tables",
        "names",
        None,
        "With catalog.type = rest: tables that are gone for good, as `db.orders`. What was to commit there is reported "
        "as a heuristic hazard, and no longer waited for.",
        {"pattern": r"[^,\s][^,]*", "right": "names of tables"},
    ),
)
