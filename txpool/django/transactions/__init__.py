"""Which transaction an alias is in: where it begins and ends, its blocks and savepoints, its errors."""
