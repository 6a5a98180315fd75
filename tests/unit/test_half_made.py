"""What an interrupt has left half made: its finaliser does nothing, and says nothing."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from txpool.dbapi.connection import Connection
from txpool.resources.postgresql.handle.connection import PsycopgConnection
from txpool.tm.transaction import Transaction


@pytest.mark.parametrize("made", [Connection, PsycopgConnection, Transaction])
def test_a_finaliser(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    half = object.__new__(made)
    del half
    assert told == []
