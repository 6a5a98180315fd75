"""Adopted branches of MariaDB and MySQL, ended over one connection."""

from __future__ import annotations

from typing import Any, cast

from txpool.resources.adopted import PhaseTwoConnection
from txpool.resources.base import BranchRecord
from txpool.resources.branch_rows import RowsDriver
from txpool.resources.mysql.phase_two import PhaseTwoCommand
from txpool.resources.phase_two import PhaseTwoVerb


class MySQLPhaseTwo(PhaseTwoConnection):
    """Ends branches on one server."""

    def _command(self, record: BranchRecord, *, committing: bool, again: bool) -> PhaseTwoCommand:
        verb = PhaseTwoVerb.COMMIT if committing else PhaseTwoVerb.ROLLBACK
        return PhaseTwoCommand(
            record, verb, cast(RowsDriver, self._driver), self._deadlines, answer_lost=again, level=self._level
        )

    def _send(self, command: PhaseTwoCommand, raw: Any) -> None:
        command.start(raw.session)

    def _is_free(self, raw: Any) -> bool:
        return bool(raw.session.is_alive())

    def _begin(self, raw: Any, until: float | None) -> None:
        raw.session.run("set autocommit = 1", until)  # else the server takes the end for work outside the branch
