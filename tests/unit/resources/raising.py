"""A module of somebody else's, which fails in its own way."""

raise RuntimeError("a package of somebody else's")
