"""Statements whose text does not surely show what they are: they are sent, and what they do is seen by its traces."""

from __future__ import annotations


def unseen(statement: str) -> str:
    """The same statement: what is in its comment might be a parameter, in whose place a driver puts something else."""
    return f"{statement} /* %(;) */"
