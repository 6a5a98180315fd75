"""What a key of a configuration file is, and how its value is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from txpool.config.other_products import word_of
from txpool.config.properties import Properties


@dataclass(frozen=True, slots=True)
class Key:
    """A key. `kind` is the name of the method of Properties that reads it, `limits` are that method's arguments."""

    name: str
    kind: str
    default: str | None
    doc: str
    limits: Mapping[str, Any] = field(default_factory=dict)
    alias: str | None = None

    @property
    def word(self) -> str:
        """The key as an argument's or a field's name: `pool_max_size`; in capitals, the end of a variable's name."""
        return word_of(self.name)

    @property
    def type(self) -> str:
        """The values that the key may have, for people."""
        words = " or ".join(self.limits.get("choices", ())) or self.kind
        return f"{words} or none" if self.limits.get("none") else words

    def read(self, values: Properties) -> Any:
        """The typed value, or None."""
        return getattr(values, self.kind)(self.name, **self.limits)


#: Limits that several keys have.
NO_VALUE = {"none": True}
POSITIVE = {"positive": True}


def reference(keys: Iterable[Key]) -> str:
    """A table of keys in Markdown."""
    rows = [f"| `{key.name}` | {key.type} | {f'`{key.default}`' if key.default else ''} | {key.doc} |" for key in keys]
    return "\n".join(["| key | type | default | |", "|---|---|---|---|", *rows])
