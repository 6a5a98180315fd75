"""Progress: how many of many branches have ended, and about how long the others take. It promises nothing."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from time import monotonic
from typing import Final

logger = logging.getLogger("txpool")

#: So many branches of one transaction are worth a word.
MANY: Final = 100
#: Seconds between two lines of the log, and between two words on a terminal.
_LOGGED: Final = 5.0
_SHOWN: Final = 0.5
#: Seconds before an estimate means anything.
_LEAST: Final = 1.0


class PhaseTwoProgress:
    """How many branches have ended, of those that are to end. One thread counts, any thread may read it.

    It is logged every few seconds. If standard error is a terminal, it also stands there, in one line that goes with
    the last branch. `what` says in the log what ends.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self.total = 0
        self.ended = 0
        self._began = now = monotonic()
        self._log_at, self._show_at = now + _LOGGED, now + _LEAST
        self._shown = False

    def __str__(self) -> str:
        return self._words(monotonic())

    def one_ended(self) -> None:
        """Count one branch whose end was answered, or will not be."""
        self.ended += 1
        now = monotonic()
        if now >= self._log_at and self.ended < self.total:
            self._log_at = now + _LOGGED
            logger.info("%s: %s", self._what, self._words(now))
        if now >= self._show_at:
            self._show_at = now + _SHOWN
            self._show(f"{self._what}: {self._words(now)}")
        if self._shown and self.ended >= self.total:
            self.clear()

    def clear(self) -> None:
        """Take its line from the terminal."""
        if self._shown:
            self._show("")
            self._shown = False

    __del__ = clear  # some branches have not answered

    def _words(self, now: float) -> str:
        words = f"{self.ended:,} of {self.total:,} branches ended"
        seconds = now - self._began
        if not self.ended or self.ended >= self.total or seconds < _LEAST:
            return words
        left = seconds * (self.total - self.ended) / self.ended
        return f"{words}, some {f'{left:.0f} s' if left < 100 else f'{left / 60:.0f} min'} left"

    def _show(self, line: str) -> None:
        with suppress(Exception):  # what takes no word, or stands in place of standard error, is no failure of a branch
            if sys.stderr.isatty():
                self._shown = True
                sys.stderr.write(f"\r{line}\x1b[K")
                sys.stderr.flush()
