"""The protocol in TLA+, checked by TLC, and the explorer's traces against it."""
