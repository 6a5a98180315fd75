"""The process of a cluster's driver, as the test speaks to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.support.children import WITH_ITS_PARENT
from tests.support.spark import submit_arguments
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.crash.cluster_site import Site

CORES = 10  # of each worker, as Spark counts them
ROWS = 20  # of a partition
#: What becomes of a driver that is told nothing.
KILLED = "killed"
PATIENCE = 3600.0  # seconds for one load of the full size, on a busy machine
_SPARK = {
    "spark.executor.cores": str(CORES),
    "spark.executor.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    "spark.task.maxFailures": "50",
    "spark.ui.showConsoleProgress": "false",
    # Of an executor that is cut off.
    "spark.network.timeout": "40s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "4s",
}


class Driver:
    """A driver's process; what it says is heard in a thread."""

    def __init__(self, site: Site) -> None:
        conf = {"spark.cores.max": str(CORES * len(site.cluster.hosts))} | _SPARK
        conf |= {"spark.driver.host": site.network.address, "spark.driver.bindAddress": site.network.address}
        environment = os.environ | site.environment | {"SPARK_LOCAL_IP": site.network.address}
        environment["PYSPARK_SUBMIT_ARGS"] = submit_arguments(site.cluster.url, conf)
        with (site.folder / "driver.err").open("a") as errors:
            self._process = subprocess.Popen(
                [*WITH_ITS_PARENT, sys.executable, "-m", "tests.crash.cluster_driver", str(site.partitions), str(ROWS)],
                cwd=site.folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        #: Whether it was killed.
        self.struck = False
        #: What it has said, and nobody has read yet.
        self.said: list[str] = []
        self._ears = threading.Thread(target=self._listen, daemon=True)
        self._ears.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.said.append(line.strip())
        self.said.append(KILLED)

    def heard(self) -> str:
        """What it has said next; nothing if it has not."""
        return self.said.pop(0) if self.said else ""

    def hear(self) -> str:
        """What it says next."""
        until(lambda: self.said, PATIENCE, "the driver says nothing")
        return self.heard()

    def tell(self, text: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it was killed
            self._process.stdin.write(f"{text}\n")
            self._process.stdin.flush()

    def kill(self, *, with_java: bool) -> None:
        """It alone, so that its Java finds out, or both at once."""
        self.struck = True
        with suppress(ProcessLookupError):
            (os.killpg if with_java else os.kill)(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Let it end by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(PATIENCE) == 0

    def close(self) -> None:
        assert self._process.stdin is not None
        self.kill(with_java=True)
        self._process.wait()
        self._ears.join()
        with suppress(BrokenPipeError):  # what it was told, and has not read
            self._process.stdin.close()
