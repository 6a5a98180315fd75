"""The options of the "txpool" format, whose names Spark does not compare by case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from txpool.config.other_products import nearest
from txpool.errors import ProgrammingError


def canonical_options(options: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """The options under their `known` names. ProgrammingError if one is unknown."""
    names = {name.lower(): name for name in known}
    for name in options:
        if name.lower() not in names:
            raise ProgrammingError(
                f'the "txpool" format has no option {name}, and nothing was done: {nearest(name, known)}'
            )
    return {names[name.lower()]: value for name, value in options.items()}
