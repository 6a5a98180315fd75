"""Transactions over PostgreSQL, MariaDB and MySQL, each in a forked child that may be killed.

`python -m tests.crash.mysql_children` in a folder with the datasources' files. It reads orders from stdin, one a line:
a number, a list of datasources joined by +, and the failpoints. It answers with how the child has ended.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import txpool
from txpool import failpoints


def transact(number: int, names: list[str], points: str) -> int:
    """0 where the transaction has committed, 1 where it has rolled back, 2 where that is in doubt."""
    arm(points)
    txpool.configure("txpool.properties")
    cursors = [txpool.connect(f"{name}.properties").cursor() for name in names]
    try:
        with txpool.transaction():
            for cursor in cursors:
                cursor.execute(f"insert into t (id) values ({number})")
    except txpool.TransactionInDoubt:
        return 2
    except Exception:
        return 1
    return 0


def arm(points: str) -> None:
    for each in filter(None, points.split(",")):
        point, _, action = each.strip().partition("=")
        action, _, nth = action.partition("@")
        failpoints.arm(point, action, nth=int(nth or 1))


def main() -> None:
    for line in sys.stdin:
        number, names, points = line.rstrip("\n").split("\t")
        pid = os.fork()
        if pid == 0:
            code = 3
            with suppress(BaseException):
                code = transact(int(number), names.split("+"), points)
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
