"""The two-phase commit: a coordinator takes one transaction's branches from PREPARE to their end."""
