"""The resource of docs/how-to/your-own-resource.md, as a module."""

from __future__ import annotations

import re
from typing import Any

from tests.support.repository import ROOT

_TEXT = (ROOT / "docs/how-to/your-own-resource.md").read_text()


def block(file: str) -> str:
    """The page's block of this name."""
    found = re.search(rf"^```python\n# {file}\n(.*?)^```$", _TEXT, re.MULTILINE | re.DOTALL)
    assert found, file
    return found[1]


_NAMES: dict[str, Any] = {"__name__": __name__}
for _file in ("outbox.py", "proven.py"):
    exec(compile(block(_file).replace("from outbox import Outbox", ""), _file, "exec"), _NAMES)

Outbox: Any = _NAMES["Outbox"]
Message: Any = _NAMES["Message"]
ProvenOutbox: Any = _NAMES["ProvenOutbox"]
