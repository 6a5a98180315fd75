"""Branches over JDBC: javax.transaction.xa from START to the end, and what it lists."""
