"""Atomic, exactly-once work over several databases from Python and Spark."""
