"""Connections that recovery opens: whatever they read, they wait no longer than the step of the pass lasts."""

from __future__ import annotations

from txpool.resources.deadlines import within_step, within_step_timeout
from txpool.resources.mysql.pymysql.connection import PyMySQLRawConnection


class SteppedPyMySQLConnection(PyMySQLRawConnection):
    """A connection whose answers must come within the step of its thread."""

    _own_read_timeout: float | None = None

    @property
    def _read_timeout(self) -> float | None:
        timeout = within_step_timeout(self._own_read_timeout)
        return None if timeout is None else max(timeout, 0.001)

    @_read_timeout.setter
    def _read_timeout(self, seconds: float | None) -> None:
        self._own_read_timeout = seconds

    def _write_bytes(self, data: bytes) -> None:
        within_step()  # nothing is sent once the step is over
        super()._write_bytes(data)
