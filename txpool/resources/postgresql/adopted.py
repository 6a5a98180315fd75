"""Adopted branches of PostgreSQL, ended over one connection."""

from __future__ import annotations

from typing import Any, cast

from txpool.resources.adopted import PhaseTwoConnection
from txpool.resources.base import BranchRecord
from txpool.resources.branch_rows import RowsDriver
from txpool.resources.postgresql.phase_two import PhaseTwoCommand, PhaseTwoVerb
from txpool.resources.postgresql.session.libpq import IDLE


class PostgreSQLPhaseTwo(PhaseTwoConnection):
    """Ends branches in one database."""

    def _command(self, record: BranchRecord, *, committing: bool, again: bool) -> PhaseTwoCommand:
        verb = PhaseTwoVerb.COMMIT if committing else PhaseTwoVerb.ROLLBACK
        return PhaseTwoCommand(record, verb, cast(RowsDriver, self._driver), self._deadlines, level=self._level)

    def _send(self, command: PhaseTwoCommand, raw: Any) -> None:
        command.start(raw)

    def _is_free(self, raw: Any) -> bool:
        return bool(raw.session.status == IDLE)
