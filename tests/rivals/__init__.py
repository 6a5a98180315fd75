"""One harness over several ways to write into two databases: `python -m tests.rivals` prints what becomes of them."""
