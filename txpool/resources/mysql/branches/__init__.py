"""Branches in MariaDB and MySQL: XA from START to the end, and what it lists."""
