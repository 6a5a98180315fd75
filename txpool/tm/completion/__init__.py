"""How a transaction ends: statuses, callbacks, errors, and the end of those that were dropped."""
