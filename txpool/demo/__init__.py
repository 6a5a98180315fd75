"""The demo that `txpool demo` runs, and the embedded PostgreSQL server that it shares with the tests."""
