"""`python cells.py NOTEBOOK`: run a notebook's code cells in order, each within a task of asyncio, as a kernel does."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any


def run(notebook: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}

    async def cell(source: str) -> None:
        exec(compile(source, str(notebook), "exec"), namespace)

    async def cells() -> None:
        for each in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            if each["cell_type"] == "code":
                await asyncio.create_task(cell("".join(each["source"])))

    asyncio.run(cells())


if __name__ == "__main__":
    run(Path(sys.argv[1]))
