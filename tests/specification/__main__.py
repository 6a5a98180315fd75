"""``python -m tests.specification`` writes the replays of the mutations anew."""

import logging

from tests.specification.replays import write

logging.disable(logging.CRITICAL)
write()
