"""What commands share that run until they are told to stop: where their log goes, and the signals."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable
from typing import Any


def log_to_stderr() -> logging.Logger:
    """Let txpool's log go to stderr, a line each; returns its logger."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("txpool")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    return logger


def stopped_by_signals() -> Callable[[], bool]:
    """Catch the first SIGTERM or SIGINT; returns what tells whether it has come. A second one interrupts."""
    stopping: list[int] = []

    def catch(handler: Any) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, handler)

    def stop(number: int, _: Any) -> None:
        stopping.append(number)
        catch(signal.default_int_handler)

    catch(stop)
    return lambda: bool(stopping)
