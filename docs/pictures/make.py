"""Makes the pictures of the documents from real runs: `python docs/pictures/make.py`, with chromium on the path.

`demo.svg` is what `txpool demo` prints. `status-page.png` is the recovery daemon's page while a transaction
is in doubt: its process was killed after the decision, and one of its two servers is down.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
sys.path.insert(0, str(ROOT))

from rich.console import Console

from txpool.demo.scenarios import run_scenarios
from txpool.demo.server import EmbeddedPostgres

#: What the process does: a transfer between two databases.
_TRANSFER = """
import txpool
txpool.configure("txpool.properties")
with txpool.transaction(note="invoice 42"):
    for name in ("orders", "billing"):
        txpool.connect(f"{name}.properties").execute("create table account ()")
"""
_WIDTH = 88


def demo(rows: int | None, *, spark: bool = True) -> None:
    """Run the demo, and keep what it prints."""
    with Path(os.devnull).open("w") as nowhere:
        # To a terminal, every turn of a spinner would be recorded.
        console = Console(
            record=True, width=_WIDTH, file=nowhere, force_terminal=False, color_system="truecolor", highlight=False
        )
        run_scenarios(rows=rows, spark=spark, keep=False, console=console)
    text = console.export_text(clear=False)
    picture = console.export_svg(title="txpool demo")
    # The picture fetches nothing: it takes the reader's own fonts.
    picture = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL).replace("Fira Code, ", "")
    (FOLDER / "demo.svg").write_text("\n".join(line.rstrip() for line in picture.splitlines()) + "\n")
    print(text)


def status_page() -> None:
    """Kill a process after its decision, stop one server, start the daemon, and photograph its page."""
    with (
        EmbeddedPostgres(databases=("orders",)) as one,
        EmbeddedPostgres(databases=("billing",)) as two,
        tempfile.TemporaryDirectory() as name,
    ):
        folder = Path(name)
        for each, server in (("orders", one), ("billing", two)):
            secret = folder / f"{each}.password"
            secret.write_text(server.password)
            secret.chmod(0o600)
            lines = [f"name = {each}", "driver = psycopg", f"url = {server.url(each)}"]
            (folder / f"{each}.properties").write_text("\n".join([*lines, f"password = ${{file:{secret.name}}}"]))
        log = "node.name = etl-1\nlog.url = sqlite:///txlog\n"
        (folder / "txpool.properties").write_text(f"{log}log.create = true\n")
        served = "datasources = orders.properties, billing.properties\nstatus.address = 127.0.0.1:9464\n"
        (folder / "recovery.properties").write_text(f"{log}{served}recovery.backoff = 0\nrecovery.period = 600\n")
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        killed = subprocess.run(
            [sys.executable, "-c", _TRANSFER],
            cwd=folder,
            env=environment | {"TXPOOL_FAILPOINTS": "coordinator.decided=kill"},
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL
        two.stop("immediate")
        daemon = subprocess.Popen(
            [sys.executable, "-m", "recovery", "run", "--conf", "recovery.properties"], cwd=folder, env=environment
        )
        try:
            _photograph()
        finally:
            daemon.kill()
            daemon.wait()
            two.start()


def _photograph() -> None:
    for _ in range(100):
        try:
            page = urllib.request.urlopen("http://127.0.0.1:9464/").read().decode()
            if re.search("invoice 42", page):
                break
        except OSError:
            pass
        time.sleep(0.2)
    chromium = shutil.which("chromium")
    assert chromium, "chromium is needed"
    with tempfile.TemporaryDirectory() as profile:
        command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [
            "--window-size=1000,900",
            f"--user-data-dir={profile}",
            f"--screenshot={FOLDER / 'status-page.png'}",
        ]
        subprocess.run([*command, "http://127.0.0.1:9464/"], check=True, capture_output=True)


if __name__ == "__main__":
    if "--no-demo" not in sys.argv:
        demo(None)
    status_page()
