"""Children that may be killed, at the price of a fork: their parent has imported everything and opened nothing.

`python -m tests.crash.fork_server FOLDER` reads orders from stdin, a JSON object a line, and answers each with one:
`{"task": "transact", "number": 7, "names": ["one", "two"], "reads": [], "failpoints": "log.record=kill"}` or
`{"task": "scan", "failpoints": …}`. A child that has survived stays until `{"task": "release"}`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from recovery import RecoveryManager
from tests.crash.site import ALREADY, EVERYONE, outcome_of
from tests.support.repository import ROOT
from txpool import aconnect, failpoints
from txpool.datasource import connect, find
from txpool.errors import AlreadyDone
from txpool.tm.ambient import current
from txpool.tm.demarcation.block import transaction
from txpool.tm.manager import configure


class ForkServer:
    """The parent of the children, as the tests speak to it."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.fork_server", str(folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def transact(
        self,
        number: int,
        names: Collection[str],
        points: str,
        *,
        reads: Collection[str] = (),
        record_in: str = "",
        in_loop: bool = False,
    ) -> dict[str, Any]:
        """One transaction in a child of its own: `said` and the `points` reached, or only `status` where it died.

        With `record_in` its number is its transaction_id, and it may have been done already. `in_loop`, a task does it.
        """
        what = {"names": [*names], "reads": [*reads], "record_in": record_in, "in_loop": in_loop}
        return self._order(task="transact", number=number, failpoints=points, **what)

    def scan(self, points: str) -> dict[str, Any]:
        """One scan of recovery in a child of its own; the answer is as for `transact`."""
        return self._order(task="scan", failpoints=points)

    def release(self) -> None:
        """Let all children end that have survived."""
        self._order(task="release")

    def close(self) -> None:
        self._process.communicate(timeout=600)

    def _order(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def main(folder: Path) -> None:
    os.chdir(folder)
    children: list[tuple[int, int]] = []
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, Any] = {}
        if order["task"] == "release":
            while children:
                pid, hold = children.pop()
                os.close(hold)
                os.waitpid(pid, 0)
        else:
            answer = _fork(order, children)
        print(json.dumps(answer), flush=True)


def _fork(order: dict[str, Any], children: list[tuple[int, int]]) -> dict[str, Any]:
    """Fork a child for the order, and hear what becomes of it."""
    hearing, telling = os.pipe()
    waiting, hold = os.pipe()
    pid = os.fork()
    if pid == 0:
        for end in (hearing, hold, *(other for _, other in children)):
            os.close(end)
        _run_child(order, telling, waiting)
    os.close(telling)
    os.close(waiting)
    with open(hearing) as answer:
        text = answer.read()
    if text:
        children.append((pid, hold))
        return dict(json.loads(text))
    os.close(hold)
    return {"status": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}


def _run_child(order: dict[str, Any], telling: int, waiting: int) -> None:
    """A child's whole life: however it goes, it never returns into its parent's code."""
    try:
        for point in failpoints.POINTS:
            failpoints.arm(point, "count")
        failpoints._arm_from_environment(order["failpoints"])
        answer = _transact(order) if order["task"] == "transact" else _scan()
        answer["points"] = [point for point in failpoints.POINTS if failpoints.reached(point)]
        failpoints.disarm()
        os.write(telling, json.dumps(answer).encode())
        os.close(telling)
        os.read(waiting, 1)
        for name in EVERYONE:
            find(f"{name}.properties").close()
        configure("txpool.properties").close()
        os._exit(0)
    finally:
        os._exit(70)


def _transact(order: dict[str, Any]) -> dict[str, Any]:
    gtrids: list[str] = []
    place = order["record_in"]
    once: dict[str, Any] = (
        {"transaction_id": f"work-{order['number']}", "record_in": f"{place}.properties"} if place else {}
    )

    def work() -> None:
        with transaction(**once) as tx:
            gtrids.append(tx.gtrid)
            for name in order["names"]:
                connect(f"{name}.properties").cursor().execute(f"insert into t values ({order['number']})")
            for name in order["reads"]:
                connect(f"{name}.properties").cursor().execute("select count(*) from t").fetchall()

    async def in_loop() -> None:
        async with transaction(**once) as tx:
            gtrids.append(tx.gtrid)
            for name in order["names"]:
                async with await aconnect(f"{name}.properties") as connection:
                    await connection.cursor().execute(f"insert into t values ({order['number']})")
            for name in order["reads"]:
                async with await aconnect(f"{name}.properties") as connection:
                    await connection.cursor().execute("select count(*) from t")

    configure("txpool.properties")
    for name in order["names"]:
        find(f"{name}.properties")  # recovery, where a claim asks for it, goes by what is known here
    try:
        said = outcome_of((lambda: asyncio.run(in_loop())) if order["in_loop"] else work)
    except AlreadyDone:
        assert not gtrids
        said = ALREADY
    assert current() is None
    return {"said": said, "gtrid": "".join(gtrids)}


def _scan() -> dict[str, Any]:
    try:
        return {"said": str(RecoveryManager("recovery/recovery.properties").scan())}
    except failpoints.Failpoint as error:
        return {"said": f"failed at {error}"}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
