"""Keeps a PostgreSQL server up for several shells: `python -m txpool.testing FILE DATASOURCE …`; Ctrl-C ends it.

Each datasource gets a database of its name. The file, which only this user can read, sets their urls and passwords, and
a decision log.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp

from txpool.demo.server import EmbeddedPostgres
from txpool.testing.server import variables


def main(path: str, *names: str) -> None:
    """Run the server until a signal ends it, and write the file."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        suppress(KeyboardInterrupt),
        TemporaryDirectory(prefix="txpool-log-") as folder,
        EmbeddedPostgres(databases=names) as server,
    ):
        values = variables(server, names, Path(folder, "txlog"))
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in values.items()]
        _write(path, "".join(lines))
        print(f"The server answers. In each shell: . {path}", flush=True)
        while True:
            signal.pause()


def _write(path: str, text: str) -> None:
    """Write a file that only this user can read, and that is there as a whole or not at all."""
    descriptor, whole = mkstemp(dir=Path(path).absolute().parent)
    with open(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
    os.replace(whole, path)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
