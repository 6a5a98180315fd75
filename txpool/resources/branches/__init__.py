"""Branches of mode xa: the states of a PREPARE, the command that ends a branch, and branches that are adopted."""
