"""Where a transaction begins and ends: a block, a decorated function, or calls."""
