"""A trace function that is told of opcodes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def trace_opcodes(trace: Callable[[FrameType, str, Any], Any]) -> None:
    """Set the trace function, which sets `f_trace_opcodes` of the frames that it wants to be told of.

    Python 3.12 tells of opcodes only if some frame has wanted them before the function is set.
    """
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
