"""The transaction manager: transactions, the two-phase commit, and what becomes of those that are in doubt or dropped.

The way of a commit: `scope` (the block), `transaction` (what takes part), `coordinator` (the protocol), `txpool.log`.
"""
