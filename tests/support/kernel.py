"""`python -m tests.support.kernel FOLDER`: run the cells of standard input in a real kernel of Jupyter's.

They come as a list in JSON. Printed is a list with what each has said: its results, and what went to each stream.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from jupyter_client.manager import start_new_kernel

_TIMEOUT = 120


def main(folder: str) -> None:
    manager, client = start_new_kernel(startup_timeout=_TIMEOUT, cwd=folder, env=dict(os.environ))
    try:
        said: list[dict[str, str]] = []
        for cell in json.load(sys.stdin):
            said.append({"result": "", "stdout": "", "stderr": "", "error": ""})

            def hear(message: Any, heard: dict[str, str] = said[-1]) -> None:
                kind, content = message["msg_type"], message["content"]
                if kind == "stream":
                    heard[content["name"]] += content["text"]
                elif kind == "execute_result":
                    heard["result"] += content["data"]["text/plain"]
                elif kind == "error":
                    heard["error"] += f"{content['ename']}: {content['evalue']}"

            client.execute_interactive(cell, timeout=_TIMEOUT, output_hook=hear)
        print(json.dumps(said))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


if __name__ == "__main__":
    main(sys.argv[1])
