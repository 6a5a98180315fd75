"""A block that has committed without any participant: what was done in it stood outside of the transaction."""

from __future__ import annotations

import warnings
from typing import Any

from txpool.errors import EmptyTransactionWarning
from txpool.tm.completion.dropped import Origin, place_of

#: By file, the lines that were warned of, as `warnings` keeps them for a module.
_registries: dict[str, dict[Any, Any]] = {}


def warn_of_empty(origin: Origin) -> None:
    """Warn, once for the line at which the block begins."""
    file, line, _ = place_of(origin)
    warnings.warn_explicit(
        "this block has committed, and nothing took part in it: no connection of txpool.connect() or create_engine(), "
        "and no resource. What it did by other means, as by a driver's own connect(), stands outside: "
        "see docs/how-to/what-takes-part.md",
        EmptyTransactionWarning,
        file,
        line,
        registry=_registries.setdefault(file, {}),
    )
