"""What is deprecated warns for one minor version before it goes: the only place that says so."""

from __future__ import annotations

import warnings


def deprecated(what: str, *, since: str, gone_in: str, instead: str, stacklevel: int = 2) -> None:
    """Warn of a use of `what`, with the versions and with what to write instead.

    The warning points to the caller's caller, or further up with a larger `stacklevel`.
    """
    text = f"{what} is deprecated since txpool {since}, and goes in {gone_in}: {instead}"
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel + 1)
