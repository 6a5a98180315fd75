"""``python -m recovery`` is the command `txpool-recovery`."""

from recovery.cli import main

main()
