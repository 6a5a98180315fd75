"""The keys of lakes: of tables in files, whose catalog is in a datasource."""

from __future__ import annotations

from txpool.config.keys.key import Key

LAKE_KEYS = (
    Key("catalog", "file", None, "With driver = iceberg: the file of the datasource that has the catalog's tables."),
    Key("warehouse", "file", None, "With driver = iceberg: the folder of the tables' files. It must exist."),
)
