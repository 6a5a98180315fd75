"""One scan: what is read, in the only order that is safe, and what is done with it."""
