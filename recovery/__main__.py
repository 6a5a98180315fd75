"""Runs the command `txpool-recovery` as `python -m recovery`."""

from recovery.cli import main

main()
