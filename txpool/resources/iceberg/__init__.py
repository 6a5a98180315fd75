"""Iceberg tables: the resource manager of `driver = iceberg`, and the tables of its catalogs."""
