"""``python -m txpool`` is the command `txpool`."""

from txpool.cli import main

main()
