"""What is in an outbox, and a recovery of it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import txpool
from recovery import RecoveryManager


def sent(outbox: Any) -> list[str]:
    return sorted(each.read_text() for each in outbox.path.iterdir() if each.name != ".txpool")


def left(outbox: Any) -> list[str]:
    """What is prepared, of any name, and what was left behind."""
    return sorted(set(outbox.prepared()) - {"identity", "generation"})


def file_of(outbox: Any, log: Path, driver: str = "tests.support.outbox:Outbox") -> Path:
    path = log.parent / f"{outbox.name}.properties"
    path.write_text(f"name = {outbox.name}\ndriver = {driver}\nurl = file:{outbox.path.name}\n")
    return path


def recover(log: Path, *paths: Path) -> RecoveryManager:
    path = log.parent / "recovery.properties"
    path.write_text(f"{log.read_text()}datasources = {', '.join(each.name for each in paths)}\nrecovery.backoff = 0\n")
    manager = RecoveryManager(path)
    manager.scan()
    return manager


def gone() -> None:
    """This process's incarnation has ended, as far as recovery can see."""
    txpool.configure()
    gc.collect()
