"""The resource of docs/your-own-resource.md, as a module."""

from __future__ import annotations

import re
from typing import Any

from tests.support.repository import ROOT

_TEXT = (ROOT / "docs/your-own-resource.md").read_text()
_NAMES: dict[str, Any] = {"__name__": __name__}
for _file in ("published.py", "proven.py"):
    _found = re.search(rf"^```python\n# {_file}\n(.*?)^```$", _TEXT, re.MULTILINE | re.DOTALL)
    assert _found
    exec(compile(_found[1].replace("from published import Folder", ""), _file, "exec"), _NAMES)

Folder: Any = _NAMES["Folder"]
Publication: Any = _NAMES["Publication"]
ProvenFolder: Any = _NAMES["ProvenFolder"]
