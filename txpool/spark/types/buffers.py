"""Access to the buffers of Arrow's binary arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def offsets_of(binary: pa.Array) -> Any:
    """The offsets of the values of a binary or large binary array, one more than there are values."""
    width = np.int64 if pa.types.is_large_binary(binary.type) else np.int32
    return np.frombuffer(binary.buffers()[1], width)[binary.offset : binary.offset + len(binary) + 1]


def concatenated(binary: pa.Array) -> memoryview:
    """All values of a binary or large binary array, concatenated; without a copy."""
    offsets = offsets_of(binary)
    return memoryview(binary.buffers()[2] or b"")[offsets[0] : offsets[-1]]


def hexadecimal(binary: pa.Array) -> pa.LargeBinaryArray:
    """The hexadecimal digits of each value of a large binary array without NULL."""
    offsets = offsets_of(binary)
    digits = bytes(concatenated(binary)).hex().encode()
    buffers = [None, pa.py_buffer((offsets - offsets[0]) * 2), pa.py_buffer(digits)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(binary), buffers)
