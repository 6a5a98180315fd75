"""Iceberg tables of REST catalogs: the prepared branch is a reference in each table, on a staged snapshot."""
